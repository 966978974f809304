/* base/device.c - the simulated GPU's data, and the GPUs of the node that this process sees.
 *
 * Why it exists: everything that a GPU reports about itself comes from RUN_DIR/device.conf, so the
 * C code holds no number of any GPU model. The launcher writes that file from the GPU's data file.
 *
 * Rule: nothing is read before a CUDA or NVML call needs it, because the job may set
 * CUDA_VISIBLE_DEVICES after start-up. Everything is read once. */
#define _GNU_SOURCE
#include "base/device.h"
#include "base/environment.h"
#include "base/fnv1a.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 64 };

static struct ph_device_spec spec;
static bool attribute_given[PH_ATTRIBUTE_LIMIT];
static char cluster_name[256] = "cluster";
static int physical_count;
static int visible_count;
static int visible_physical[MAX_DEVICES];
static pthread_once_t spec_once = PTHREAD_ONCE_INIT;
static pthread_once_t physical_once = PTHREAD_ONCE_INIT;
static pthread_once_t visible_once = PTHREAD_ONCE_INIT;

static _Thread_local int current_device __attribute__((tls_model("initial-exec")));

/* ---- device.conf ---- */

enum kind { U64, INT, TEXT };

static const struct field {
    const char *key;
    enum kind kind;
    size_t offset;
} fields[] = {
#define FIELD(name, kind) {#name, kind, offsetof(struct ph_device_spec, name)}
    FIELD(name, TEXT),
    FIELD(memory_bytes, U64),
    FIELD(context_bytes, U64),
    FIELD(comm_bytes, U64),
    FIELD(compute_major, INT),
    FIELD(compute_minor, INT),
    FIELD(multiprocessors, INT),
    FIELD(nvlinks, INT),
    FIELD(launch_latency_ns, U64),
    FIELD(kernel_gap_ns, U64),
    FIELD(crowd_gap_ns, U64),
    FIELD(graph_gap_ns, U64),
    FIELD(graph_launch_ns, U64),
    FIELD(graph_node_ns, U64),
    FIELD(launch_queue, U64),
    FIELD(other_stream_permille, U64),
    FIELD(other_stream_lists_permille, U64),
#undef FIELD
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

/* Parses a decimal or 0x number. False when the text holds anything else. */
static bool parse_integer(const char *text, long long *value)
{
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 0);
    return end != text && *end == '\0' && errno == 0;
}

/* "cost.launch 3400": the host cost of a call of that class, in ns. A class without a line costs
 * nothing. */
static void set_cost(const char *path, int line, const char *name, const char *value)
{
    long long number;
    if (!parse_integer(value, &number) || number < 0)
        ph_die("%s:%d: cost.%s: '%s' is not a whole number of 0 or more", path, line, name, value);
    for (enum ph_call call = 0; call < PH_CALLS; call++)
        if (strcmp(name, ph_call_name(call)) == 0) {
            spec.call_cost[call] = (uint64_t)number;
            return;
        }
    ph_die("%s:%d: cost.%s: unknown class of calls; is the launcher of another version than this "
           "library?",
           path, line, name);
}

/* "power.window_ns 100000000", "power.drawn_uw.1 1060000000": one number of struct ph_power. ".N"
 * selects an array element. */
static void set_power(const char *path, int line, const char *name, const char *value)
{
    static const struct {
        const char *name;
        size_t offset;
        unsigned count;
    } places[] = {
        {"available_uw", offsetof(struct ph_power, available_uw), 1},
        {"drawn_uw", offsetof(struct ph_power, drawn_uw), PH_BOUND_BY_COUNT},
        {"flop_fj", offsetof(struct ph_power, flop_fj), PH_PRECISIONS},
        {"attention_flop_fj", offsetof(struct ph_power, attention_flop_fj), 1},
        {"attention_base_uw", offsetof(struct ph_power, attention_base_uw), 1},
        {"link_fj", offsetof(struct ph_power, link_fj), 1},
        {"awake_uw", offsetof(struct ph_power, awake_uw), 1},
        {"window_ns", offsetof(struct ph_power, window_ns), 1},
        {"highest_khz", offsetof(struct ph_power, highest_khz), 1},
        {"recorded_khz", offsetof(struct ph_power, recorded_khz), PH_BOUND_BY_COUNT},
        {"fastest_khz", offsetof(struct ph_power, fastest_khz), PH_BOUND_BY_COUNT},
        {"follows_permille", offsetof(struct ph_power, follows_permille), PH_BOUND_BY_COUNT},
        {"clock_khz", offsetof(struct ph_power, clock_khz), PH_POWER_CLOCKS},
        {"variation_permille", offsetof(struct ph_power, variation_permille), PH_GPU_VARIATIONS}};
    size_t length = strcspn(name, ".");
    long long number, index = 0;
    if (name[length] && !parse_integer(name + length + 1, &index)) index = -1;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strlen(places[i].name) == length && strncmp(name, places[i].name, length) == 0 &&
            index >= 0 && index < places[i].count) {
            if (!parse_integer(value, &number))
                ph_die("%s:%d: power.%s: '%s' is not a whole number", path, line, name, value);
            ((int64_t *)((char *)&spec.power + places[i].offset))[index] = number;
            return;
        }
    ph_die("%s:%d: power.%s: unknown key; is the launcher of another version than this library?",
           path, line, name);
}

static void set_field(const char *path, int line, const char *key, const char *value, bool *seen)
{
    long long number;
    if (strncmp(key, "cost.", 5) == 0) {
        set_cost(path, line, key + 5, value);
        return;
    }
    if (strncmp(key, "power.", 6) == 0) {
        set_power(path, line, key + 6, value);
        return;
    }
    if (strcmp(key, "cluster") == 0) {
        snprintf(cluster_name, sizeof cluster_name, "%s", value);
        return;
    }
    if (strncmp(key, "attribute.", 10) == 0) {
        long long attribute;
        if (!parse_integer(key + 10, &attribute) || attribute < 1 ||
            attribute >= PH_ATTRIBUTE_LIMIT)
            ph_die("%s:%d: %s: no such attribute; 1 to %d are possible", path, line, key,
                   PH_ATTRIBUTE_LIMIT - 1);
        if (!parse_integer(value, &number) || number < INT32_MIN || number > INT32_MAX)
            ph_die("%s:%d: %s: '%s' is not a 32-bit integer", path, line, key, value);
        spec.attributes[attribute] = (int)number;
        attribute_given[attribute] = true;
        return;
    }
    for (int i = 0; i < FIELDS; i++) {
        if (strcmp(key, fields[i].key) != 0) continue;
        char *target = (char *)&spec + fields[i].offset;
        seen[i] = true;
        if (fields[i].kind == TEXT) {
            snprintf(target, sizeof spec.name, "%s", value);
            return;
        }
        if (!parse_integer(value, &number) || number < 0 ||
            (fields[i].kind == INT && number > INT32_MAX))
            ph_die("%s:%d: %s: '%s' is not a whole number of 0 or more", path, line, key, value);
        if (fields[i].kind == INT)
            *(int *)target = (int)number;
        else
            *(uint64_t *)target = (uint64_t)number;
        return;
    }
    ph_die("%s:%d: %s: unknown key; is the launcher of another version than this library?", path,
           line, key);
}

static void read_spec(void)
{
    const char *directory = ph_env("PHANTORA_RUN_DIR");
    if (directory == NULL)
        ph_die("PHANTORA_RUN_DIR is not set; start the job with the phantora-ns command");
    char path[4096];
    if (snprintf(path, sizeof path, "%s/device.conf", directory) >= (int)sizeof path)
        ph_die("PHANTORA_RUN_DIR is too long");
    FILE *file = fopen(path, "re");
    if (file == NULL)
        ph_die("%s: %s; the run directory must stay until the job has ended", path,
               strerror(errno));

    bool seen[FIELDS] = {false};
    char text[1024];
    for (int line = 1; fgets(text, sizeof text, file) != NULL; line++) {
        text[strcspn(text, "\r\n")] = '\0';
        char *key = text + strspn(text, " \t");
        if (*key == '\0' || *key == '#') continue;
        char *value = key + strcspn(key, " \t");
        if (*value == '\0')
            ph_die("%s:%d: %s: value missing; each line is a key, a blank and a value", path, line,
                   key);
        *value++ = '\0';
        value += strspn(value, " \t");
        set_field(path, line, key, value, seen);
    }
    bool failed = ferror(file) != 0;
    fclose(file);
    if (failed) ph_die("%s: cannot be read", path);
    for (int i = 0; i < FIELDS; i++)
        if (!seen[i]) ph_die("%s: %s is missing", path, fields[i].key);
}

const struct ph_device_spec *ph_spec(void)
{
    pthread_once(&spec_once, read_spec);
    return &spec;
}

/* ---- the node's GPUs ---- */

static int environment_integer(const char *name, int otherwise, int least, int most)
{
    const char *text = ph_env(name);
    long long value;
    if (text == NULL) return otherwise;
    if (!parse_integer(text, &value) || value < least || value > most)
        ph_die("%s: '%s' is not a number from %d to %d", name, text, least, most);
    return (int)value;
}

static void read_physical(void)
{
    physical_count = environment_integer("PHANTORA_GPUS_PER_NODE", 1, 0, MAX_DEVICES);
}

/* Separate from the visible count: NVML may ask for this before the job sets CUDA_VISIBLE_DEVICES.
 */
int ph_physical_count(void)
{
    pthread_once(&physical_once, read_physical);
    return physical_count;
}

void ph_physical_uuid(int physical, unsigned char uuid[16])
{
    ph_spec();
    int place[2] = {environment_integer("PHANTORA_NODE", 0, 0, 1 << 24), physical};
    for (int half = 0; half < 2; half++) {
        uint64_t hash = ph_fnv1a_text(PH_FNV1A ^ (uint64_t)half, cluster_name);
        hash = ph_fnv1a(hash, place, sizeof place);
        hash ^= hash >> 29; /* FNV-1a barely mixes its last bytes into the high bits */
        hash *= 0xbf58476d1ce4e5b9ULL;
        hash ^= hash >> 32;
        memcpy(uuid + 8 * half, &hash, 8);
    }
    /* RFC 9562: version 5 (made from a name), variant 10 */
    uuid[6] = (unsigned char)((uuid[6] & 0x0f) | 0x50);
    uuid[8] = (unsigned char)((uuid[8] & 0x3f) | 0x80);
}

void ph_uuid_text(const unsigned char uuid[16], char text[41])
{
    static const char digits[] = "0123456789abcdef";
    char *p = text;
    memcpy(p, "GPU-", 4);
    p += 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *p++ = '-';
        *p++ = digits[uuid[i] >> 4];
        *p++ = digits[uuid[i] & 15];
    }
    *p = '\0';
}

void ph_physical_pci(int physical, int *domain, int *bus, int *device)
{
    *domain = physical / 15;
    *bus = 16 * (physical % 15 + 1);
    *device = 0;
}

/* ---- CUDA_VISIBLE_DEVICES ---- */

/* The physical ordinal that one entry of the list names. -1 when it names none, which ends the
 * list. */
static int resolve_entry(const char *entry, bool by_uuid)
{
    if (!by_uuid) {
        /* Like the driver, takes the number at the start of the entry and ignores what follows it.
         */
        char *end;
        long number = strtol(entry, &end, 10);
        return end != entry && number >= 0 && number < physical_count ? (int)number : -1;
    }
    size_t length = strlen(entry);
    int found = -1;
    for (int i = 0; i < physical_count; i++) {
        unsigned char uuid[16];
        char text[41];
        ph_physical_uuid(i, uuid);
        ph_uuid_text(uuid, text);
        if (strncmp(text, entry, length) != 0) continue;
        if (found >= 0) return -1; /* a prefix must name one GPU */
        found = i;
    }
    return found;
}

static void read_visible(void)
{
    ph_physical_count();
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (list == NULL) {
        for (visible_count = 0; visible_count < physical_count; visible_count++)
            visible_physical[visible_count] = visible_count;
        return;
    }
    bool by_uuid = strncmp(list + strspn(list, " \t"), "GPU-", 4) == 0;
    bool taken[MAX_DEVICES] = {false};
    while (visible_count < MAX_DEVICES) {
        size_t length = strcspn(list, ",");
        char entry[128];
        const char *start = list + strspn(list, " \t");
        size_t used = start < list + length ? (size_t)(list + length - start) : 0;
        while (used > 0 && (start[used - 1] == ' ' || start[used - 1] == '\t')) used--;
        if (used == 0 || used >= sizeof entry) break;
        memcpy(entry, start, used);
        entry[used] = '\0';
        int physical =
            by_uuid == (strncmp(entry, "GPU-", 4) == 0) ? resolve_entry(entry, by_uuid) : -1;
        if (physical < 0) break;
        if (taken[physical]) {
            visible_count = 0; /* like the driver: no GPU at all when one is named twice */
            break;
        }
        taken[physical] = true;
        visible_physical[visible_count++] = physical;
        if (list[length] == '\0') break;
        list += length + 1;
    }
}

int ph_device_count(void)
{
    pthread_once(&visible_once, read_visible);
    return visible_count;
}

int ph_device_physical(int device)
{
    int count = ph_device_count();
    return device >= 0 && device < count ? visible_physical[device] : -1;
}

int ph_physical_visible(int physical)
{
    int count = ph_device_count();
    for (int i = 0; i < count; i++)
        if (visible_physical[i] == physical) return i;
    return -1;
}

int ph_device_current(void) { return current_device; }

void ph_device_set(int device) { current_device = device; }

void ph_device_uuid(int device, unsigned char uuid[16])
{
    ph_physical_uuid(ph_device_physical(device), uuid);
}

bool ph_device_attribute(int device, int attribute, int *value)
{
    const struct ph_device_spec *gpu = ph_spec();
    int domain, bus, slot;
    ph_physical_pci(ph_device_physical(device), &domain, &bus, &slot);
    switch (attribute) {
    case PH_ATTRIBUTE_PCI_DOMAIN: *value = domain; return true;
    case PH_ATTRIBUTE_PCI_BUS: *value = bus; return true;
    case PH_ATTRIBUTE_PCI_DEVICE: *value = slot; return true;
    case PH_ATTRIBUTE_MULTIPROCESSORS: *value = gpu->multiprocessors; return true;
    case PH_ATTRIBUTE_COMPUTE_MAJOR: *value = gpu->compute_major; return true;
    case PH_ATTRIBUTE_COMPUTE_MINOR: *value = gpu->compute_minor; return true;
    default:
        if (attribute < 1 || attribute >= PH_ATTRIBUTE_LIMIT || !attribute_given[attribute])
            return false;
        *value = gpu->attributes[attribute];
        return true;
    }
}
