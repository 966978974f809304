/* work/occurrence.c - which question a rank asks of its GPU's values, and for the how manieth time.
 *
 * Why it exists: what a leader's GPU computed is told again (--values replay) where the same job
 * asks the same thing: an operator of given shapes whose result hangs on values, or the host that
 * reads so many bytes within an operator. A question is a text; occasions count from 0 in each
 * process. Rule: the leader and the simulated rank ask alike and count alike, whether they need the
 * answer or not. */
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

uint64_t ph_question_hash(const char *question) { return ph_fnv1a_text(PH_FNV1A, question); }

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

uint32_t ph_occasion(uint64_t hash)
{
    pthread_mutex_lock(&lock);
    if (2 * used >= room) grow();
    size_t at = slot_of(hash);
    if (!table[at].used) table[at].used = true, table[at].hash = hash, used++;
    uint32_t occasion = table[at].asked++;
    pthread_mutex_unlock(&lock);
    return occasion;
}

void ph_read_question(char text[PH_QUESTION], size_t bytes)
{
    const char *operator_name;
    ph_operator_place(&operator_name, false);
    snprintf(text, PH_QUESTION, "read %zu bytes in %s", bytes,
             operator_name ? operator_name : "no operator");
}
