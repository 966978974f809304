/* addresses.c - the driver's choice of addresses.
 *
 * Why it exists: PyTorch's caching allocator breaks ties between equal free blocks by address. So
 * its fragmentation, and with it the peaks that we promise to the byte, depends on the order of
 * addresses. The policy of cudaMalloc was observed on an H200 (driver 580): the segment addresses
 * of two training runs and of a series of plain cudaMallocs.
 *
 * Space is taken in chunks of a multiple of 32 MiB, each below the previous one. An allocation goes
 * to the lowest hole inside the chunks that holds it, otherwise to the start of a new chunk. A
 * chunk whose last allocation is freed is released, and its addresses are not reused soon. The
 * context leaves a hole of 24 MiB above all chunks.
 *
 * The first kernel makes the driver take a chunk of 512 MiB. Its first 502 MiB are available to
 * allocations once the process has a communicator: in four training runs they went to its first 494
 * to 502 MiB and never beyond; 160m-none-1k, which has no communicator, never used it. Until there
 * is a communicator, two gaps of 32 MiB below the context's chunk are used, the upper one first
 * (160m-none-1k: the two segments after its first kernel; resnet50-ddp-256: the only segment
 * between its first kernel and its communicator). */
#include "simulated/memory/addresses.h"
#include "base/log.h"
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 32 << 20,
    CONTEXT_HOLE = 24 << 20,
    GAPS = 2,
    CODE_CHUNK = 512 << 20,
    CODE_HOLE = 502 << 20
};

static void *grown(void *array, size_t count, size_t *capacity, size_t item)
{
    if (count < *capacity) return array;
    *capacity = *capacity ? *capacity * 2 : 64;
    array = realloc(array, *capacity * item);
    if (!array) ph_die("out of host memory for the table of addresses");
    return array;
}

/* First index whose base is above `address`. Chunks and holes are both sorted by base, the first
 * field. */
static size_t above(const struct ph_range *range, size_t count, uintptr_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (range[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(struct ph_range **range, size_t *count, size_t *capacity, struct ph_range fresh)
{
    *range = grown(*range, *count, capacity, sizeof **range);
    size_t at = above(*range, *count, fresh.base);
    memmove(*range + at + 1, *range + at, (*count - at) * sizeof **range);
    (*range)[at] = fresh;
    ++*count;
}

static void erase(struct ph_range *range, size_t *count, size_t at)
{
    memmove(range + at, range + at + 1, (*count - at - 1) * sizeof *range);
    --*count;
}

void ph_addresses_init(struct ph_addresses *space, uintptr_t low, uintptr_t high)
{
    *space = (struct ph_addresses){
        .low = low, .top = high - (1 + GAPS) * CHUNK, .gaps_end = high - CHUNK};
    insert(&space->chunk, &space->chunks, &space->chunk_capacity,
           (struct ph_range){high - CHUNK, CHUNK});
    insert(&space->hole, &space->holes, &space->hole_capacity,
           (struct ph_range){high - CONTEXT_HOLE, CONTEXT_HOLE});
}

/* When the space below is used up: the highest gap between chunks. No tie has depended on it so
 * far. */
static uintptr_t highest_gap(const struct ph_addresses *space, size_t bytes)
{
    for (size_t i = space->chunks; i-- > 0;) {
        uintptr_t floor = i ? space->chunk[i - 1].base + space->chunk[i - 1].bytes : space->low;
        if (space->chunk[i].base - floor >= bytes) return space->chunk[i].base - bytes;
    }
    return 0;
}

static uintptr_t new_chunk(struct ph_addresses *space, size_t whole, size_t hole_from,
                           size_t hole_to)
{
    bool in_gap = whole == CHUNK && space->gaps > 0;
    if (in_gap) space->gaps--, space->gaps_end -= CHUNK;
    uintptr_t at = in_gap                             ? space->gaps_end
                   : space->top - space->low >= whole ? space->top - whole
                                                      : highest_gap(space, whole);
    if (!at) return 0;
    if (at < space->top) space->top = at;
    insert(&space->chunk, &space->chunks, &space->chunk_capacity, (struct ph_range){at, whole});
    if (hole_to > hole_from)
        insert(&space->hole, &space->holes, &space->hole_capacity,
               (struct ph_range){at + hole_from, hole_to - hole_from});
    return at;
}

static void open_code_hole(struct ph_addresses *space)
{
    insert(&space->hole, &space->holes, &space->hole_capacity,
           (struct ph_range){space->code, CODE_HOLE});
}

void ph_addresses_code(struct ph_addresses *space)
{
    space->code = new_chunk(space, CODE_CHUNK, 0, 0);
    if (!space->code) return;
    if (space->communicates)
        open_code_hole(space);
    else
        space->gaps = GAPS;
}

void ph_addresses_communicator(struct ph_addresses *space)
{
    if (space->communicates) return;
    space->communicates = true;
    space->gaps = 0;
    if (space->code) open_code_hole(space);
}

uintptr_t ph_addresses_take(struct ph_addresses *space, size_t bytes)
{
    for (size_t i = 0; i < space->holes; i++)
        if (space->hole[i].bytes >= bytes) {
            uintptr_t at = space->hole[i].base;
            space->hole[i].base += bytes;
            space->hole[i].bytes -= bytes;
            if (!space->hole[i].bytes) erase(space->hole, &space->holes, i);
            return at;
        }
    size_t whole = (bytes + CHUNK - 1) / CHUNK * CHUNK;
    return new_chunk(space, whole, bytes, whole);
}

void ph_addresses_give(struct ph_addresses *space, uintptr_t base, size_t bytes)
{
    size_t home = above(space->chunk, space->chunks, base) - 1;
    const struct ph_range *chunk = &space->chunk[home];
    struct ph_range hole = {base, bytes};
    size_t at = above(space->hole, space->holes, base);
    if (at < space->holes && space->hole[at].base == base + bytes &&
        space->hole[at].base < chunk->base + chunk->bytes) {
        hole.bytes += space->hole[at].bytes;
        erase(space->hole, &space->holes, at);
    }
    if (at > 0 && space->hole[at - 1].base + space->hole[at - 1].bytes == base &&
        space->hole[at - 1].base >= chunk->base) {
        hole.base = space->hole[at - 1].base;
        hole.bytes += space->hole[at - 1].bytes;
        erase(space->hole, &space->holes, at - 1);
    }
    if (hole.base == chunk->base && hole.bytes == chunk->bytes)
        erase(space->chunk, &space->chunks, home);
    else
        insert(&space->hole, &space->holes, &space->hole_capacity, hole);
}
