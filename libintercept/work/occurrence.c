/* work/occurrence.c - replay keys: which GPU values a rank asks for, and how often it has asked.
 *
 * Why it exists: with `--values replay` a job gets the values that a leader's GPU computed for the
 * same request of the same job. A request is an operator of given shapes whose result depends on
 * values, or a host read of a given number of bytes within an operator. A replay key is a text. Its
 * occurrences are counted from 0 in each process.
 *
 * Rule: a leader and a simulated rank make the same keys and count in the same way, whether or not
 * they need the value. */
#include "base/fork.h"
#include "work/occurrence.h"
#include "base/fnv1a.h"
#include "base/hash_map.h"
#include "time/operators.h"
#include <pthread.h>
#include <stdio.h>

static struct ph_hash_map met; /* by a key's hash: how often it was met */
static pthread_mutex_t PH_FREE_IN_CHILD lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t ph_replay_key_hash(const char *key) { return ph_fnv1a_text(PH_FNV1A, key); }

uint32_t ph_occurrence(uint64_t hash)
{
    pthread_mutex_lock(&lock);
    uint64_t before = ph_hash_map_get(&met, hash);
    ph_hash_map_put(&met, hash, before + 1);
    pthread_mutex_unlock(&lock);
    return (uint32_t)before;
}

void ph_read_replay_key(char text[PH_REPLAY_KEY], size_t bytes)
{
    const char *operator_name;
    ph_operator_call(&operator_name, false);
    snprintf(text, PH_REPLAY_KEY, "read %zu bytes in %s", bytes,
             operator_name ? operator_name : "no operator");
}
