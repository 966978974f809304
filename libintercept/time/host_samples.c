/* time/host_samples.c - what this run's ranks measure of call sites, and what is charged of it.
 *
 * Why it exists: a record does not know every job's code. It is kept by operators, and another job
 * may run other code around the same operators. So the first run of a job measures. A call site is
 * charged the mean of its samples on all ranks, times the speed of this machine against the
 * reference one. The speed is the ratio of what a probe takes on both. The launcher runs it beside
 * the ranks (launch/record/host_probe.py). A slow or busy machine thus lengthens both, and changes
 * no charge.
 *
 * The probe runs twice. Its first pass starts with caches that other code has used. So does the
 * job's code between two calls, since the interceptor, the observation of operators and other ranks
 * run on the same cores. The first early_ns of a time are therefore scaled by the first pass. Work
 * that runs longer has filled the caches with its own data by then, and so has the second pass,
 * which scales the rest.
 *
 * Samples of a thread that has lately not run are longer, and do not count once there are ENOUGH
 * others. A call site that nearly always comes after a wait is charged those: one other sample may
 * be anything.
 * A sample FAR times above the others is no usual one. A short one is an interruption and is
 * charged to nobody. A long one is work that comes seldom (a checkpoint, garbage collection, a
 * batch of text), and is charged as it is. A later run charges it on the ranks that did it. It
 * comes again only if one process did it again: loading, for instance, comes once in each.
 *
 * Rule: the file is shared by all ranks without a lock, so each field is read and written by
 * itself. A lost sample or an old mean does no harm. */
#include "time/host_samples.h"
#include "base/environment.h"
#include "base/hash_map.h"
#include "base/log.h"
#include "base/map_file.h"
#include "base/protocol.gen.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLES = sizeof((struct ph_host_samples_slot *)0)->sample / sizeof(uint32_t),
    UNIT_NS = 16,
    FAR = 16, /* times */
    ENOUGH = 8,
    TRIED = 64 /* slots for a key */
};
#define FAR_NS 1000000u /* less is an interruption */

static struct ph_host_samples_header *header;
static struct ph_host_samples_slot *slots;
static struct ph_hash_map seldom_at; /* by key: 1 + the occurrence here that was seldom work last */

#define READ(field) atomic_load_explicit(&(field), memory_order_relaxed)
#define ADD(field, value) atomic_fetch_add_explicit(&(field), value, memory_order_relaxed)

void ph_host_samples_map(void)
{
    char path[512];
    size_t bytes;
    if (header) return;
    struct ph_host_samples_header *map = ph_map_file(PH_HOST_SAMPLES_FILE, true, path, &bytes);
    if (bytes < sizeof *map || map->magic != PH_HOST_SAMPLES_MAGIC ||
        map->version != PH_HOST_SAMPLES_VERSION || map->capacity == 0 ||
        (map->capacity & (map->capacity - 1)) ||
        bytes < sizeof *map + map->capacity * sizeof *slots)
        ph_die("%s is not a file of host samples of this version", path);
    slots = (struct ph_host_samples_slot *)(map + 1);
    header = map;
    atomic_store_explicit(&header->measuring, 1, memory_order_relaxed);
}

static struct ph_host_samples_slot *slot_of(uint64_t key)
{
    uint64_t mask = header->capacity - 1;
    for (uint64_t at = key & mask, tried = 0; tried < TRIED; at = (at + 1) & mask, tried++) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&slots[at].key, &found, key) || found == key)
            return &slots[at];
    }
    ADD(header->lost, 1);
    return NULL;
}

/* Of the first `count` samples, without those that are FAR times the median. */
static uint64_t mean(const struct ph_host_samples_slot *slot, uint32_t count)
{
    uint64_t sum = 0;
    uint32_t sorted[SAMPLES], used = 0, usual = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t sample = READ(slot->sample[i]), at = used++;
        for (; at > 0 && sorted[at - 1] > sample; at--) sorted[at] = sorted[at - 1];
        sorted[at] = sample;
    }
    uint64_t far = (uint64_t)sorted[(used - 1) / 2] * FAR;
    for (; usual < used && sorted[usual] <= far; usual++) sum += sorted[usual];
    return sum * UNIT_NS / usual;
}

/* Every sample so far is kept with the same probability: the speed is one of the whole run, too.
 * The first one is not: it gives way to the second. It includes loading what later ones find
 * loaded. */
static uint64_t add_usual(struct ph_host_samples_slot *slot, uint64_t ns)
{
    uint64_t unit = ns / UNIT_NS;
    uint32_t before = ADD(slot->usual, 1), number = before ? before - 1 : 0, at = number;
    if (number >= SAMPLES) {
        uint64_t draw = (number + slot->key) * 0x9e3779b97f4a7c15ull;
        at = (uint32_t)((draw ^ draw >> 29) * 0xbf58476d1ce4e5b9ull >> 32) % (number + 1);
    }
    if (at >= SAMPLES) return READ(slot->mean_ns);
    atomic_store_explicit(&slot->sample[at], unit < UINT32_MAX ? (uint32_t)unit : UINT32_MAX,
                          memory_order_relaxed);
    uint64_t now = mean(slot, number < SAMPLES ? number + 1 : SAMPLES);
    atomic_store_explicit(&slot->mean_ns, now, memory_order_relaxed);
    return now;
}

void ph_host_samples_forget(void) { seldom_at = (struct ph_hash_map){0}; }

uint32_t ph_host_rank_bit(void)
{
    const char *rank = getenv("RANK");
    return rank ? (uint32_t)1 << strtoul(rank, NULL, 10) % 32 : UINT32_MAX;
}

static void add_seldom(struct ph_host_samples_slot *slot, uint64_t ns, uint32_t number)
{
    uint32_t earliest = READ(slot->seldom_first);
    uint64_t before = ph_hash_map_put(&seldom_at, slot->key, (uint64_t)number + 1);
    ADD(slot->seldom, 1);
    ADD(slot->seldom_ns, ns);
    atomic_fetch_or_explicit(&slot->seldom_ranks, ph_host_rank_bit(), memory_order_relaxed);
    if (before) {
        ADD(slot->seldom_again, 1);
        ADD(slot->seldom_apart, number + 1 - before);
    }
    if (earliest == 0 || number + 1 < earliest)
        atomic_store_explicit(&slot->seldom_first, number + 1, memory_order_relaxed);
}

/* What the reference machine takes for `ns` of this one. The launcher reckons in the same way
 * (phantora_ns/kernels/database/host_samples.py). */
static uint64_t on_the_reference(uint64_t ns)
{
    uint64_t here_ns = READ(header->probe_ns), again_ns = READ(header->probe_again_ns);
    if (!here_ns) return ns;
    uint64_t early = ns < header->early_ns ? ns : header->early_ns;
    double first = (double)header->reference_ns / (double)here_ns;
    double again = (double)header->reference_again_ns / (double)again_ns;
    return (uint64_t)((double)early * first + (double)(ns - early) * again);
}

bool ph_host_samples_add(const struct ph_host_sample *sample, uint64_t *charge_ns)
{
    struct ph_host_samples_slot *slot = slot_of(sample->key);
    *charge_ns = 0;
    if (!slot) return false;
    uint64_t here = READ(slot->usual) ? READ(slot->mean_ns) : 0;
    if (here && sample->ns >= FAR_NS && sample->ns / FAR >= here) {
        add_seldom(slot, sample->ns, sample->occurrence);
        *charge_ns = on_the_reference(sample->ns);
        return true;
    }
    if (here && (sample->occurrence == 0 || (sample->cold && READ(slot->warm) >= ENOUGH))) {
        *charge_ns = on_the_reference(here);
        return true;
    }
    bool beside_cold = READ(slot->usual) >= ENOUGH; /* where ENOUGH - 1 are warm */
    if (!sample->cold && ADD(slot->warm, 1) == ENOUGH - 1 && beside_cold)
        atomic_store_explicit(&slot->usual, 0, memory_order_relaxed);
    uint64_t usual = add_usual(slot, sample->ns);
    if (!here && sample->table_ns) return false;
    *charge_ns = on_the_reference(usual);
    return true;
}
