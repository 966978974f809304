/* simulated/memory/holders.c - who made each block of PyTorch's allocator, and which of them held
 * its peak.
 *
 * Why it exists: a peak is of use only with what held it. The allocator tells of every block
 * (simulated/values/defined.c), the values library of the operator's place in the model
 * (values/modules.cpp), and Python which blocks are parameters, gradients and states of optimizers
 * (startup/_phantora_modules.py). Here these meet.
 *
 * A block is there at the peak when it was made before it and not freed before it. So a block that
 * is freed after the latest peak is kept in a list, which a new peak empties. Nothing is copied,
 * and every change is O(1).
 *
 * Rule: the allocator's lock is held in ph_holders_change, so that nothing of Python or PyTorch may
 * be called there. */
#include "simulated/memory/holders.h"
#include "base/api.h"
#include "base/fnv1a.h"
#include "base/fork.h"
#include "base/hash_map.h"
#include "base/protocol.gen.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 16 };

struct block {
    uint64_t bytes, born;
    uint32_t place, owner; /* kind + PH_HOLDERS * name; 0: not known */
};

struct device {
    struct ph_hash_map live; /* address -> struct block */
    struct block *gone;      /* freed since the peak, made before it */
    size_t gone_used, gone_room;
    uint64_t changes, allocated, peak, peak_at;
    uint64_t step_at, peak_step_at; /* where the step began: the present one, the peak's */
    bool lost;                      /* a block was not seen: the parts would not add up */
};

static pthread_mutex_t PH_FREE_IN_CHILD lock = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[DEVICES];
static char **names; /* names[0] is "" */
static uint32_t names_used, names_room;
static struct ph_hash_map name_at; /* hash of a name -> its number + 1 */
static _Thread_local uint32_t place_now;
static uint32_t (*_Atomic ask_module)(void);
static void (*_Atomic settle_owners)(void);

static bool watched(void)
{
    return atomic_load_explicit(&ask_module, memory_order_acquire) != NULL;
}

static void keep_gone(struct device *device, struct block block)
{
    if (device->gone_used == device->gone_room) {
        size_t room = device->gone_room ? 2 * device->gone_room : 1024;
        struct block *larger = realloc(device->gone, room * sizeof *larger);
        if (!larger) {
            device->lost = true;
            return;
        }
        device->gone = larger;
        device->gone_room = room;
    }
    device->gone[device->gone_used++] = block;
}

static void made_locked(struct device *device, uint64_t address, uint64_t bytes)
{
    struct block *block = malloc(sizeof *block);
    if (!block) {
        device->lost = true;
        return;
    }
    *block = (struct block){.bytes = bytes, .born = device->changes, .place = place_now};
    struct block *before = (struct block *)ph_hash_map_take(&device->live, address);
    if (before) device->lost = true;
    free(before);
    ph_hash_map_put(&device->live, address, (uint64_t)block);
    device->allocated += bytes;
    if (device->allocated > device->peak) {
        device->peak = device->allocated;
        device->peak_at = device->changes;
        device->peak_step_at = device->step_at;
        device->gone_used = 0;
    }
}

static void freed_locked(struct device *device, uint64_t address)
{
    struct block *block = (struct block *)ph_hash_map_take(&device->live, address);
    if (!block) {
        device->lost = true;
        return;
    }
    device->allocated -= block->bytes;
    if (block->born <= device->peak_at) keep_gone(device, *block);
    free(block);
}

void ph_holders_change(const void *pointer, int64_t bytes, uint64_t allocated, int device)
{
    if (!watched() || device < 0 || device >= DEVICES || bytes == 0) return;
    struct device *its = &devices[device];
    pthread_mutex_lock(&lock);
    its->changes++;
    if (bytes > 0)
        made_locked(its, (uint64_t)pointer, (uint64_t)bytes);
    else
        freed_locked(its, (uint64_t)pointer);
    if (its->allocated != allocated) its->lost = true;
    pthread_mutex_unlock(&lock);
}

/* ---- for the values library ---- */

/* 1: the job is watched. */
PH_API(int, phantora_memory_watched, (void)) { return watched(); }

/* The number of a name, the same for the life of the process; 0 for "". */
PH_API(uint32_t, phantora_memory_name, (const char *name))
{
    uint64_t hash = ph_fnv1a_text(PH_FNV1A, name);
    pthread_mutex_lock(&lock);
    uint32_t found = (uint32_t)ph_hash_map_get(&name_at, hash);
    if (!found && names_used == names_room) {
        uint32_t room = names_room ? 2 * names_room : 256;
        char **larger = realloc(names, room * sizeof *larger);
        if (larger) names = larger, names_room = room;
        if (larger && !names_used) names[names_used++] = strdup("");
    }
    if (!found && *name && names_used < names_room) {
        names[names_used++] = strdup(name);
        ph_hash_map_put(&name_at, hash, names_used);
        found = names_used;
    }
    pthread_mutex_unlock(&lock);
    return found ? found - 1 : 0;
}

/* Blocks that this thread makes from now on are of this kind (enum ph_holder) and this name.
 * Returns what was said before, for phantora_memory_back. */
PH_API(uint32_t, phantora_memory_place, (int kind, uint32_t name))
{
    uint32_t before = place_now;
    place_now = (uint32_t)kind + PH_HOLDERS * name;
    return before;
}
PH_API(void, phantora_memory_back, (uint32_t before)) { place_now = before; }

/* The name of the module whose forward this thread is in; 0: in none. Python answers. */
PH_API(uint32_t, phantora_memory_module, (void))
{
    uint32_t (*ask)(void) = atomic_load_explicit(&ask_module, memory_order_acquire);
    return ask ? ask() : 0;
}

/* An optimizer has stepped; Python says what blocks are. */
PH_API(void, phantora_memory_settle, (void))
{
    void (*settle)(void) = atomic_load_explicit(&settle_owners, memory_order_acquire);
    if (settle) settle();
    pthread_mutex_lock(&lock);
    for (int device = 0; device < DEVICES; device++)
        devices[device].step_at = devices[device].changes;
    pthread_mutex_unlock(&lock);
}

/* ---- for Python (startup/_phantora_modules.py) ---- */

/* Begins to watch, before the first block is made; NULL: asks Python no more. */
PH_API(void, phantora_memory_watch, (uint32_t (*module)(void), void (*settle)(void)))
{
    atomic_store(&settle_owners, settle);
    atomic_store(&ask_module, module);
}

/* The block at this address is of this kind and name, wherever it was made. */
PH_API(void, phantora_memory_own, (int device, uint64_t address, int kind, uint32_t name))
{
    if (device < 0 || device >= DEVICES) return;
    pthread_mutex_lock(&lock);
    struct block *block = (struct block *)ph_hash_map_get(&devices[device].live, address);
    if (block) block->owner = (uint32_t)kind + PH_HOLDERS * name;
    pthread_mutex_unlock(&lock);
}

PH_API(const char *, phantora_memory_name_of, (uint32_t name))
{
    pthread_mutex_lock(&lock);
    const char *found = name && name < names_used ? names[name] : "";
    pthread_mutex_unlock(&lock);
    return found;
}

struct held {
    uint64_t bytes;
    uint32_t kind, name;
};

/* The blocks that a device's peak consists of, at most `room` of them. Returns how many there are;
 * 0 when nothing was allocated, -1 when blocks were not seen. `peak` receives its bytes. */
PH_API(int64_t, phantora_memory_held, (int device, uint64_t *peak, struct held *held, size_t room))
{
    if (device < 0 || device >= DEVICES) return 0;
    pthread_mutex_lock(&lock);
    const struct device *its = &devices[device];
    size_t count = 0;
    *peak = its->peak;
    for (size_t i = 0; i < its->gone_used + its->live.capacity; i++) {
        const struct block *block =
            i < its->gone_used ? &its->gone[i]
                               : (const struct block *)its->live.entry[i - its->gone_used].value;
        if (!block || block->born > its->peak_at) continue;
        uint32_t what = block->owner ? block->owner : block->place;
        if (!block->owner && block->born <= its->peak_step_at)
            what = what - what % PH_HOLDERS + PH_HOLDER_KEPT;
        if (count < room)
            held[count] = (struct held){block->bytes, what % PH_HOLDERS, what / PH_HOLDERS};
        count++;
    }
    int64_t result = its->lost ? -1 : (int64_t)count;
    pthread_mutex_unlock(&lock);
    return result;
}
