/* work/occurrence.c - replay keys: which GPU values a rank asks for, and how often it has asked.
 *
 * Why it exists: with `--values replay` a job gets the values that a leader's GPU computed for the
 * same request of the same job. A request is an operator of given shapes whose result depends on
 * values, or a host read of a given number of bytes within an operator. A replay key is a text. Its
 * occurrences are counted from 0 in each process.
 *
 * Rule: a leader and a simulated rank make the same keys and count in the same way, whether or not
 * they need the value. */
#include "work/occurrence.h"
#include "base/fnv1a.h"
#include "base/log.h"
#include "time/operators.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    uint64_t hash;
    uint32_t asked;
    bool used;
} *table;
static size_t room, used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t ph_replay_key_hash(const char *key) { return ph_fnv1a_text(PH_FNV1A, key); }

static size_t slot_of(uint64_t hash)
{
    size_t at = hash & (room - 1);
    while (table[at].used && table[at].hash != hash) at = (at + 1) & (room - 1);
    return at;
}

static void grow(void)
{
    __typeof__(table) before = table;
    size_t count = room;
    room = room ? 2 * room : 256;
    if (!(table = calloc(room, sizeof *table))) ph_die("out of host memory");
    for (size_t i = 0; i < count; i++)
        if (before[i].used) table[slot_of(before[i].hash)] = before[i];
    free(before);
}

uint32_t ph_occurrence(uint64_t hash)
{
    pthread_mutex_lock(&lock);
    if (2 * used >= room) grow();
    size_t at = slot_of(hash);
    if (!table[at].used) table[at].used = true, table[at].hash = hash, used++;
    uint32_t occurrence = table[at].asked++;
    pthread_mutex_unlock(&lock);
    return occurrence;
}

void ph_read_replay_key(char text[PH_REPLAY_KEY], size_t bytes)
{
    const char *operator_name;
    ph_operator_call(&operator_name, false);
    snprintf(text, PH_REPLAY_KEY, "read %zu bytes in %s", bytes,
             operator_name ? operator_name : "no operator");
}
