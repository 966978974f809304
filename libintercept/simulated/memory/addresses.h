/* addresses.h - the driver's choice of addresses for cudaMalloc. See addresses.c. Not thread-safe:
 * memory.c holds its lock. */
#ifndef PH_ADDRESSES_H
#define PH_ADDRESSES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ph_range {
    uintptr_t base;
    size_t bytes;
};
struct ph_addresses {
    uintptr_t low, top; /* new chunks go below `top`, never below `low` */
    /* gaps for chunks of the smallest size, each below the previous one, end here */
    uintptr_t gaps_end;
    /* gaps left; none before the first kernel, nor with a communicator */
    int gaps;
    uintptr_t code; /* the chunk taken at the first kernel, 0 before it */
    bool communicates;
    struct ph_range *chunk, *hole;
    size_t chunks, chunk_capacity, holes, hole_capacity;
};
void ph_addresses_init(struct ph_addresses *space, uintptr_t low, uintptr_t high);
void ph_addresses_code(struct ph_addresses *space); /* at the launch of the first kernel */
void ph_addresses_communicator(
    struct ph_addresses *space); /* when the first communicator is made */
/* a multiple of 2 MiB; 0: no addresses left */
uintptr_t ph_addresses_take(struct ph_addresses *space, size_t bytes);
void ph_addresses_give(struct ph_addresses *space, uintptr_t base, size_t bytes);
#endif
