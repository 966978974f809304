/* simulated/memory/memory.h - device and pinned memory of a simulated GPU
 * (simulated/memory/memory.c).
 */
#ifndef PH_SIMULATED_MEMORY_H
#define PH_SIMULATED_MEMORY_H
#include "base/memory.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void ph_device_memory(int device, uint64_t *free_bytes, uint64_t *total_bytes);
bool ph_is_device(const void *pointer);
void *ph_device_alloc(int device, size_t bytes); /* NULL: out of memory */
/* before a kernel is launched; the first launch changes where allocations go */
void ph_device_code(int device);
/* when a communicator is made; the first one does so too */
void ph_device_communicator(int device);
bool ph_device_free(void *pointer); /* false: not an allocation */
void *ph_pinned_alloc(size_t bytes);
bool ph_pinned_free(void *pointer);
void ph_pinned_register(void *pointer, size_t bytes);
bool ph_pinned_unregister(void *pointer);
/* the allocation that contains a pointer */
bool ph_find(const void *pointer, struct ph_allocation *found);
enum ph_memory_kind ph_kind(const void *pointer);
int ph_pointer_device(const void *pointer);
/* accounts for memory without an address; false: out of memory */
bool ph_charge(int device, uint64_t bytes);
void ph_discharge(int device, uint64_t bytes);
void *ph_virtual_reserve(size_t bytes, size_t alignment);
bool ph_virtual_free(void *pointer, size_t bytes);
void ph_virtual_owner(void *pointer, size_t bytes, int device); /* device -1: unmapped */
/* Copies the values, if memory of this size has any; otherwise zeroes the destination. True: the
 * host reads device bytes that nothing computed. */
bool ph_move(void *destination, const void *source, size_t bytes);
void ph_fill(void *destination, int value, size_t bytes);
#endif
