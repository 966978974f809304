/* time/host_model.c - the job's own host time, recorded, measured and charged by call site.
 *
 * Why it exists: measured CPU time differs between runs and machines, but the framework's work
 * between two CUDA calls hardly does. So the time before each call is recorded once, by call site,
 * and charged in later runs. Such runs repeat to the byte, and predict the machine of the record
 * (docs/host-time.md).
 *
 * A call site is the class of the call, the enclosing framework operator, and the index of the
 * call in that operator. Call sites repeat in patterns (a layer, a bucket, a step), and the time
 * before a call depends on the previous calls. So times are kept for the last 4, 3, 2 and 1 call
 * sites, and for the class alone (depth 0). The deepest key that the record knows is charged. The
 * history belongs to the process, not to a thread, because the backward pass continues in another
 * thread.
 *
 * How means are made robust: the first sample of a key pays for loading what later calls find
 * loaded, and no other call site shares that cost. So it is left out once there are WARM other
 * samples, or when it lies at least FAR octaves above the median of the few others. A sample is an
 * interruption (garbage collection, a page fault, a signal) when it lies at least FAR octaves
 * above the key's median octave and is at least INTERRUPTION_NS long. Any call site may suffer
 * one, so interruptions are taken out of the means. Their sum is spread evenly over all call
 * sites, as one number. The total stays the same, and no call site is charged for the cost of
 * another. */
#include "time/host_model.h"
#include "base/environment.h"
#include "base/fnv1a.h"
#include "base/fork.h"
#include "base/hash_map.h"
#include "base/log.h"
#include "base/map_file.h"
#include "link/connection.h"
#include "time/host_clock.h"
#include "time/host_samples.h"
#include "time/operators.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH = 4,
    OCTAVES = 24,
    SHORTEST = 7,
    WARM = 3,
    FAR = 4,
    INDICES = 31,
    KEY_INTERRUPTION = 64
};
#define INTERRUPTION_NS 50000u

/* ---- call sites and their keys ---- */
/* The number or position of some calls depends on simulated times (queries, reads of a clock).
 * Other calls occur only on some kinds of rank (allocations). These calls are not part of the
 * history: they would make equal call sites look different. */
static bool in_history(enum ph_call call) { return call <= PH_CALL_SYNC; }
bool ph_call_site_counts(enum ph_call call)
{
    return call != PH_CALL_MALLOC && call != PH_CALL_FREE;
}

static uint64_t history[DEPTH]; /* the last call sites, latest first */

static uint64_t mix(uint64_t hash)
{
    hash = (hash ^ hash >> 31) * 0x7fb5d329728ea185ull;
    hash = (hash ^ hash >> 27) * 0x81dadef4bc2dd44dull;
    return hash ^ hash >> 33;
}

/* Keys are below 2^63, because SQLite's integers are signed. Small keys are those of the classes.
 */
static uint64_t key_of(uint64_t hash, int depth)
{
    return (mix(hash + (uint64_t)depth) >> 1) | 1024;
}

struct call_site {
    enum ph_call call;
    const char *name;
    unsigned index; /* of the call in its operator */
    int depth;      /* length of the longest known history */
    uint64_t key[DEPTH + 1];
    /* By which this run measures it. With a full history that is key[DEPTH]. At the start of a
     * process the history is short, and key[depth] stands for the mean over all longer ones. */
    uint64_t own;
};

/* The caller's call site, and its keys at all depths. Appends the call site to the history. */
static struct call_site arrive(enum ph_call call)
{
    struct call_site here = {.call = call, .key = {call + 1}};
    here.index = ph_operator_call(&here.name, in_history(call));
    if (here.index > INDICES) here.index = INDICES;
    uint64_t site = ph_fnv1a_text(PH_FNV1A ^ call, here.name ? here.name : "");
    if (in_history(call)) site = (site ^ here.index) * 0x100000001b3ull;
    site = mix(site);
    here.key[1] = key_of(site, 1);
    here.depth = 1;
    uint64_t hash = site;
    for (int back = 0; back < DEPTH - 1 && history[back]; back++) {
        hash = mix(hash * 3 + history[back]);
        here.depth++;
        here.key[here.depth] = key_of(hash, here.depth);
    }
    here.own = key_of(hash, here.depth == DEPTH ? DEPTH : DEPTH + here.depth);
    if (!in_history(call)) return here; /* it has a history, and is not part of one */
    memmove(history + 1, history, sizeof history - sizeof *history);
    history[0] = site;
    return here;
}

void ph_call_site_enter(enum ph_call call) { arrive(call); }

static void forget(void);

/* ---- charging from a record ---- */
static const struct ph_host_table_header *header;
static const struct ph_host_table_slot *slots;
static struct ph_hash_map occurrences; /* of call sites in this process, by key */

void ph_host_model_map(void)
{
    char path[512];
    size_t bytes;
    if (header) return;
    const struct ph_host_table_header *map = ph_map_file(PH_HOST_TABLE_FILE, false, path, &bytes);
    if (bytes < sizeof *map || map->magic != PH_HOST_TABLE_MAGIC ||
        map->version != PH_HOST_TABLE_VERSION || map->capacity == 0 ||
        (map->capacity & (map->capacity - 1)) ||
        bytes < sizeof *map + map->capacity * sizeof *slots)
        ph_die("%s is not a table of host times of this version", path);
    slots = (const struct ph_host_table_slot *)(map + 1);
    header = map;
    if (header->measures) ph_host_samples_map();
    ph_forget_in_child(forget);
}

/* This table is not a struct ph_hash_map: its layout is that of a file, which Python writes
 * (kernels/database/host_table.py) and all ranks of a server map read-only. */
static const struct ph_host_table_slot *find(uint64_t key)
{
    uint64_t mask = header->capacity - 1;
    for (uint64_t at = key & mask, seen = 0; seen <= mask && slots[at].key;
         at = (at + 1) & mask, seen++)
        if (slots[at].key == key) return &slots[at];
    return NULL;
}

static uint64_t charge(unsigned level, uint64_t time)
{
    atomic_fetch_add_explicit(&ph_stats()->host_calls[level], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&ph_stats()->host_ns[level], time, memory_order_relaxed);
    return time;
}

/* Charges the table's time of the call site with as much of its history as the table knows. */
static uint64_t backed_off(const struct call_site *here)
{
    const struct ph_host_table_slot *slot = find(here->own);
    int depth = here->depth;
    if (slot && slot->learned)
        return charge(PH_HOST_LEVEL_LEARNED,
                      slot->mean_ns + (in_history(here->call) ? header->interruption_ns : 0));
    while (depth >= 0 && !(slot = find(here->key[depth]))) depth--;
    unsigned level = depth < 0             ? PH_HOST_LEVEL_UNKNOWN
                     : depth == 0          ? PH_HOST_LEVEL_CLASS
                     : depth < here->depth ? PH_HOST_LEVEL_BACKED_OFF
                                           : PH_HOST_LEVEL_EXACT;
    return charge(level, (slot ? slot->mean_ns : header->unknown_ns) +
                             (in_history(here->call) ? header->interruption_ns : 0));
}

static uint32_t occurrence_of(uint64_t key)
{
    uint64_t before = ph_hash_map_get(&occurrences, key);
    ph_hash_map_put(&occurrences, key, before + 1);
    return (uint32_t)before;
}

/* Whether more is done than usual before this occurrence of the call site. */
static bool seldom_now(const struct ph_host_table_slot *slot)
{
    if (!slot->seldom_ranks || !(slot->seldom_ranks & ph_host_rank_bit())) return false;
    uint32_t number = occurrence_of(slot->key), first = slot->seldom_first;
    if (number <= first || !slot->seldom_every) return number == first;
    return (number - first) % slot->seldom_every == 0;
}

uint64_t ph_call_site_time(enum ph_call call)
{
    if (!ph_call_site_counts(call)) return 0;
    struct call_site here = arrive(call);
    const struct ph_host_table_slot *slot = find(here.own);
    if (slot && seldom_now(slot)) return charge(PH_HOST_LEVEL_LEARNED, slot->seldom_ns);
    return backed_off(&here);
}

uint64_t ph_call_site_measured(enum ph_call call, uint64_t spent_ns, bool cold)
{
    struct call_site here = arrive(call);
    uint64_t time;
    const struct ph_host_table_slot *slot = find(here.key[here.depth]);
    struct ph_host_sample sample = {.key = here.own,
                                    .ns = spent_ns,
                                    .table_ns = slot ? slot->mean_ns : 0,
                                    .occurrence = occurrence_of(here.own),
                                    .cold = cold};
    if (ph_host_samples_add(&sample, &time)) return charge(PH_HOST_LEVEL_MEASURED, time);
    return backed_off(&here);
}

bool ph_host_model_measures(void) { return header && header->measures; }

/* ---- recording ---- */
struct record {
    struct record *next; /* the one that was made before it */
    uint64_t key;
    const char *text;
    int depth;
    uint64_t first; /* the first sample, kept apart */
    uint32_t count[OCTAVES];
    uint64_t sum[OCTAVES];
};
static _Atomic bool recording;     /* set by the first observed call, while other threads read it */
static struct ph_hash_map records; /* by key */
static struct record *latest;      /* the head of the list of all records */

void ph_host_model_record(void)
{
    recording = true;
    ph_forget_in_child(forget);
}
bool ph_host_model_recording(void) { return recording; }

/* The parent reports its own records; the child starts with none. */
static void forget(void)
{
    memset(history, 0, sizeof history);
    occurrences = (struct ph_hash_map){0};
    ph_host_samples_forget();
    records = (struct ph_hash_map){0};
    latest = NULL;
}

static const char *text_of(const struct call_site *here)
{
    char text[160];
    if (in_history(here->call))
        snprintf(text, sizeof text, "%s %s %u", ph_call_name(here->call),
                 here->name ? here->name : "-", here->index);
    else
        snprintf(text, sizeof text, "%s %s", ph_call_name(here->call),
                 here->name ? here->name : "-");
    const char *kept = strdup(text);
    if (!kept) ph_die("out of host memory for the record of host times");
    return kept;
}

static int octave_of(uint64_t ns)
{
    int octave = 63 - __builtin_clzll(ns | 1) - SHORTEST;
    return octave < 0 ? 0 : octave >= OCTAVES ? OCTAVES - 1 : octave;
}

static void add(struct record *record, uint64_t ns)
{
    record->count[octave_of(ns)]++;
    record->sum[octave_of(ns)] += ns;
}

static uint64_t samples(const struct record *record)
{
    uint64_t count = 0;
    for (int i = 0; i < OCTAVES; i++) count += record->count[i];
    return count;
}

void ph_call_site_passed(enum ph_call call, uint64_t spent_ns)
{
    struct call_site here = arrive(call);
    const char *text = NULL;
    if (!recording) return;
    for (int depth = 0; depth <= here.depth; depth++) {
        struct record *record = (struct record *)ph_hash_map_get(&records, here.key[depth]);
        if (!record) {
            record = calloc(1, sizeof *record);
            if (!record) ph_die("out of host memory for the record of host times");
            if (depth == 1) text = text_of(&here);
            *record = (struct record){.next = latest,
                                      .key = here.key[depth],
                                      .depth = depth,
                                      .text = depth == 0 ? ph_call_name(call) : text,
                                      .first = spent_ns};
            latest = record;
            ph_hash_map_put(&records, record->key, (uintptr_t)record);
        } else {
            add(record, spent_ns);
        }
        if (depth == 1) text = record->text;
    }
}

static int median_octave(const struct record *record)
{
    uint64_t half = (samples(record) + 1) / 2, passed = 0;
    int middle = 0;
    while (passed + record->count[middle] < half) passed += record->count[middle++];
    return middle;
}

/* The summary of a key's samples. The first sample counts only if there are few others and it is
 * similar to them. Interruptions are counted separately. */
struct summary {
    uint64_t count, sum, median, interrupted, interrupted_sum;
};

static struct summary summarise(const struct record *record)
{
    struct record all = *record;
    struct summary result = {0};
    uint64_t others = samples(&all);
    if (others == 0 || (others < WARM && octave_of(all.first) < median_octave(&all) + FAR))
        add(&all, all.first);
    int middle = median_octave(&all);
    result.median = all.sum[middle] / all.count[middle];
    for (int i = 0; i < OCTAVES; i++) {
        bool apart = i >= middle + FAR && (1ull << (i + SHORTEST)) >= INTERRUPTION_NS;
        if (apart)
            result.interrupted += all.count[i], result.interrupted_sum += all.sum[i];
        else
            result.count += all.count[i], result.sum += all.sum[i];
    }
    return result;
}

static void pack_site(struct ph_pack *pack, uint64_t key, int depth, const char *text,
                      const struct summary *summary)
{
    ph_pack_array(pack, 6);
    ph_pack_uint(pack, key);
    ph_pack_int(pack, depth);
    ph_pack_str(pack, text);
    ph_pack_uint(pack, summary->count);
    ph_pack_uint(pack, summary->count ? summary->sum / summary->count : 0);
    ph_pack_uint(pack, summary->median);
}

/* Takes ph_lock itself. */
void ph_host_model_pack(struct ph_pack *pack)
{
    struct summary interruptions = {0};
    pthread_mutex_lock(&ph_lock);
    ph_pack_array(pack, (uint32_t)records.used + 1);
    for (const struct record *record = latest; record; record = record->next) {
        struct summary summary = summarise(record);
        pack_site(pack, record->key, record->depth, record->text, &summary);
        if (record->depth != DEPTH) continue;
        interruptions.count += summary.count + summary.interrupted;
        interruptions.sum += summary.interrupted_sum;
    }
    interruptions.median = 0;
    pack_site(pack, KEY_INTERRUPTION, 0, "interruption", &interruptions);
    pthread_mutex_unlock(&ph_lock);
}

/* ---- sending the record to the hub ---- */
static void send_at_exit(void)
{
    struct ph_pack body = {0};
    if (!ph_touched() || !latest) return;
    ph_pack_uint(&body, ph_stats()->clock_ns);
    /* the launcher measured the score while the machine was idle */
    const char *score = ph_env("PHANTORA_HOST_SCORE");
    ph_pack_map(&body, score ? 2 : 1);
    if (score) ph_pack_str(&body, "score"), ph_pack_double(&body, strtod(score, NULL));
    ph_pack_str(&body, "sites"), ph_host_model_pack(&body);
    ph_send(PH_MESSAGE_HOST, &body, 2);
    ph_pack_free(&body); /* link/flush.c then waits until it has arrived */
}

static void register_at_exit(void) { atexit(send_at_exit); }

/* Registered by simulated ranks. A leader sends its own HOST message. */
void ph_host_model_send_at_exit(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_at_exit);
}
