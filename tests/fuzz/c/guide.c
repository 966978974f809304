/* guide.c - calls a parser with changed inputs, and keeps those that reach code which none before
 * has.
 *
 * Why it exists: a change that is drawn blindly seldom passes the first check of a parser. The
 * parser is compiled with -fsanitize-coverage=trace-pc, so that each branch calls here; this file
 * is not.
 *
 *     guide SEED EXECUTIONS SECONDS FOLDER FRESH CRASH
 *
 * FOLDER has the first inputs; new ones are written to FRESH, and one that ends the process to
 * CRASH. Ends with a line "executions N places P inputs I". */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PLACES = 1 << 16, MOST_INPUTS = 1 << 14, MOST_BYTES = 4096, HANG_S = 10 };

struct input {
    unsigned char *bytes;
    size_t size;
};
static struct input inputs[MOST_INPUTS];
static unsigned input_count, place_count;
static unsigned char counts[PLACES],
    seen[PLACES]; /* how often a step was taken; in which orders of magnitude */
static uint16_t touched[PLACES];
static unsigned touched_count;
static uintptr_t before;
static uint64_t state;
static unsigned char current[MOST_BYTES];
static size_t current_size;
static const char *crash_file, *fresh_folder;

/* Called at each branch of the parser. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    unsigned place = (unsigned)((here ^ before) & (PLACES - 1));
    before = here >> 1;
    if (!counts[place]) touched[touched_count++] = (uint16_t)place;
    if (counts[place] < UCHAR_MAX) counts[place]++;
}

/* xorshift64* */
static uint64_t draw(void)
{
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 2685821657736338717ull;
}
static size_t below(size_t bound) { return bound ? (size_t)(draw() >> 11) % bound : 0; }

static void write_file(const char *path, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size) perror(path);
    if (fd >= 0) close(fd);
}
static void keep_crash(void) { write_file(crash_file, current, current_size); }
static void on_signal(int number)
{
    keep_crash();
    _exit(100 + number);
}

static bool is_new(void)
{
    bool found = false;
    for (unsigned i = 0; i < touched_count; i++) {
        unsigned place = touched[i], count = counts[place];
        unsigned char magnitude = (unsigned char)(1u << (count < 4     ? count - 1
                                                         : count < 8   ? 3
                                                         : count < 16  ? 4
                                                         : count < 32  ? 5
                                                         : count < 128 ? 6
                                                                       : 7));
        if (!seen[place]) place_count++;
        if (!(seen[place] & magnitude)) found = true;
        seen[place] |= magnitude;
        counts[place] = 0;
    }
    touched_count = 0;
    return found;
}

static bool run(const unsigned char *bytes, size_t size)
{
    /* memory of its own size, so that the address sanitizer sees a byte too many */
    unsigned char *copy = malloc(size + !size);
    memcpy(copy, bytes, size);
    before = 0;
    alarm(HANG_S);
    fuzz_one(copy, size);
    alarm(0);
    free(copy);
    return is_new();
}

static void keep(const unsigned char *bytes, size_t size, bool fresh)
{
    if (input_count == MOST_INPUTS) return;
    inputs[input_count] = (struct input){malloc(size + !size), size};
    memcpy(inputs[input_count++].bytes, bytes, size);
    if (!fresh) return;
    char path[PATH_MAX];
    uint64_t hash = 14695981039346656037ull; /* FNV-1a */
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 1099511628211ull;
    snprintf(path, sizeof path, "%s/%016llx", fresh_folder, (unsigned long long)hash);
    write_file(path, bytes, size);
}

static void take(const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        FILE *file = entries[i]->d_name[0] == '.' ? NULL : fopen(path, "rb");
        free(entries[i]);
        if (!file) continue;
        current_size = fread(current, 1, sizeof current, file);
        fclose(file);
        if (run(current, current_size)) keep(current, current_size, false);
    }
    if (count >= 0) free(entries);
}

/* One change of `current`. */
static void change(void)
{
    static const uint64_t words[] = {
        0,        1,          7,          127,       128,        255,        1u << 15,       65535,
        1u << 31, UINT32_MAX, 1ull << 32, INT64_MAX, 1ull << 63, UINT64_MAX, UINT64_MAX - 63};
    size_t at = below(current_size), length = 1 + below(16);
    if (length > current_size - at) length = current_size - at;
    switch (below(8)) {
    case 0:
        if (current_size) current[at] ^= (unsigned char)(1u << below(8));
        break;
    case 1:
        if (current_size) current[at] = (unsigned char)draw();
        break;
    case 2:
    case 3: { /* a word, perhaps a little more or less than there was */
        size_t bytes = (size_t)1 << below(4);
        uint64_t word = words[below(sizeof words / sizeof *words)];
        if (at + bytes > current_size) break;
        if (below(2)) {
            word = 0;
            memcpy(&word, current + at, bytes);
            word += below(17) - 8;
        }
        memcpy(current + at, &word, bytes);
        break;
    }
    case 4: /* something is missing */
        memmove(current + at, current + at + length, current_size - at - length);
        current_size -= length;
        break;
    case 5: /* something is there twice */
        if (current_size + length > MOST_BYTES) break;
        memmove(current + at + length, current + at, current_size - at);
        current_size += length;
        break;
    case 6: { /* another input's end */
        const struct input *other = &inputs[below(input_count)];
        size_t from = below(other->size), bytes = other->size - from;
        if (at + bytes > MOST_BYTES) break;
        memcpy(current + at, other->bytes + from, bytes);
        current_size = at + bytes;
        break;
    }
    default: /* a piece of it elsewhere */
        memmove(current + below(current_size - length + 1), current + at, length);
    }
}

int main(int count, char **arguments)
{
    if (count != 7) return 2;
    state = strtoull(arguments[1], NULL, 0) * 2 + 1;
    unsigned long long most = strtoull(arguments[2], NULL, 0), done = 0;
    time_t end = time(NULL) + atoi(arguments[3]);
    fresh_folder = arguments[5], crash_file = arguments[6];
    __sanitizer_set_death_callback(keep_crash);
    signal(SIGABRT, on_signal);
    signal(SIGALRM, on_signal);
    take(arguments[4]);
    take(fresh_folder);
    if (!input_count) keep((const unsigned char *)"", 0, false);
    while (done < most && (done % 256 || time(NULL) < end)) {
        const struct input *from = &inputs[below(input_count)];
        memcpy(current, from->bytes, current_size = from->size);
        for (size_t changes = 1 + below(6); changes; changes--) change();
        if (run(current, current_size)) keep(current, current_size, true);
        done++;
    }
    printf("executions %llu places %u inputs %u\n", done, place_count, input_count);
    return 0;
}
