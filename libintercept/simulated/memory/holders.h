/* simulated/memory/holders.h - what held the peak of PyTorch's allocator (`--memory-modules`). */
#ifndef PH_HOLDERS_H
#define PH_HOLDERS_H
#include <stdint.h>

/* The allocator has handed out a block (bytes > 0) or taken one back (bytes < 0), and holds
 * `allocated` bytes since. Does nothing unless the job is watched. */
void ph_holders_change(const void *pointer, int64_t bytes, uint64_t allocated, int device);
#endif
