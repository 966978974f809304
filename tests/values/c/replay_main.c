/* replay_main.c - what replay.c finds in tables of recorded values, which come on standard input as
 * `u32 length, bytes`. For each table it asks for occurrences of a key and prints what was found.
 *
 * Why it exists: a file may be damaged, and no damage may make a rank read beyond it. Each table
 * has memory of its own size, so that the address sanitizer sees such a read. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simulated/values/replay.c"

static unsigned char *table;
static void *mapped; /* the copy that replay.c sees, of a table that it may refuse */
static size_t table_bytes;
static jmp_buf refused;
static uint32_t asked;
static struct ph_rank_stats page;

struct ph_rank_stats *ph_stats(void) { return &page; }
void *ph_map_file(const char *name, bool writable, char path[512], size_t *bytes)
{
    (void)name, (void)writable, (void)path;
    *bytes = table_bytes;
    return mapped = memcpy(malloc(table_bytes), table, table_bytes);
}
const char *ph_env(const char *name) { return strcmp(name, "RANK") ? "replay" : "1"; }
void ph_die(const char *format, ...) { longjmp(refused, format != NULL); }
uint64_t ph_replay_key_hash(const char *key) { return (unsigned char)*key; }
uint32_t ph_occurrence(uint64_t hash) { return (void)hash, asked; }
void ph_read_replay_key(char text[PH_REPLAY_KEY], size_t bytes) { (void)text, (void)bytes; }
void ph_payload_settle(const void *source, size_t bytes) { (void)source, (void)bytes; }
bool ph_any_undefined(const void *source, size_t bytes) { return (void)source, (void)bytes, true; }
bool ph_move(void *to, const void *from, size_t bytes) { return memcpy(to, from, bytes), true; }

int main(void)
{
    static const uint32_t occurrences[] = {0, 1, 2, 7, UINT32_MAX};
    uint32_t length;
    while (fread(&length, sizeof length, 1, stdin) == 1) {
        table = malloc(length + 1);
        if (fread(table, 1, length, stdin) != length) return 2;
        table_bytes = length;
        once = PTHREAD_ONCE_INIT;
        file = NULL;
        mapped = NULL;
        if (setjmp(refused)) {
            puts("refused");
            free(mapped);
            free(table);
            continue;
        }
        for (size_t i = 0; i < sizeof occurrences / sizeof *occurrences; i++) {
            struct ph_replayed found;
            asked = occurrences[i];
            if (ph_replay("a", true, &found))
                printf("%.*s ", (int)found.bytes, (const char *)found.value);
            else
                printf("- ");
        }
        puts("");
        free(mapped);
        free(table);
    }
    return 0;
}
