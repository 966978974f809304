/* page.h - the shared pages between ranks and the hub.
 *
 * Why it exists: docs/wire-protocol.md fixes these layouts; the hub reads them from Python by offset, so a field may be
 * added at the end but never moved. */
#ifndef PH_PAGE_H
#define PH_PAGE_H
#include <stddef.h>
#include <stdint.h>

enum { PH_SOURCES = 8 };
enum ph_source { PH_EXACT, PH_LAUNCH, PH_LAW, PH_GEMM, PH_ATTENTION, PH_ROOFLINE, PH_COPY, PH_GUESS };

#define PH_RANK_MAGIC 0x50484e5352414e4bull
#define PH_TABLE_MAGIC 0x50484e534b524e4cull

struct ph_rank_page {
    uint64_t magic, version;
    _Atomic uint64_t clock_ns, sent_seq;
    _Atomic uint64_t host_cpu_ns, blocked;
    _Atomic uint64_t kernel_launches, comm_launches;
    _Atomic uint64_t allocated_bytes, peak_driver_bytes;
    _Atomic uint64_t torch_peak_allocated, torch_peak_reserved;
    _Atomic uint64_t device, calls, reserved[2];
    _Atomic uint64_t busy_ns[PH_SOURCES];
    _Atomic uint64_t launches[PH_SOURCES];
};
_Static_assert(offsetof(struct ph_rank_page, clock_ns) == 16, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, calls) == 104, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, busy_ns) == 128, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, launches) == 192, "wire-protocol.md");

struct ph_table_slot {
    _Atomic uint64_t key, duration_ns;
    uint32_t source, drag_permille;
    uint64_t reserved;
};
struct ph_table_header {
    uint64_t magic, version, capacity, count, reserved[4];
};
_Static_assert(sizeof(struct ph_table_slot) == 32 && sizeof(struct ph_table_header) == 64, "wire-protocol.md");
#endif
