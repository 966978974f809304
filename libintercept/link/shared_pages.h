/* link/shared_pages.h - the shared pages between ranks and the hub.
 *
 * Why it exists: docs/wire-protocol.md fixes these layouts; the hub reads them from Python by
 * offset, so a field may be added at the end but never moved. */
#ifndef PH_PAGE_H
#define PH_PAGE_H
#include <stddef.h>
#include <stdint.h>

enum { PH_SOURCES = 8 };
enum ph_source {
    PH_EXACT,
    PH_LAUNCH,
    PH_LAW,
    PH_GEMM,
    PH_ATTENTION,
    PH_ROOFLINE,
    PH_COPY,
    PH_GUESS
};

/* How well the record of host times knew the place of a call (time/host_model.c); the last is what the
 * calls themselves cost. */
enum { PH_HOST_LEVELS = 8 };
enum ph_host_level {
    PH_HOST_EXACT,
    PH_HOST_BACKED_OFF,
    PH_HOST_CLASS,
    PH_HOST_UNKNOWN,
    PH_HOST_CALL
};

#define PH_RANK_MAGIC 0x50484e5352414e4bull
#define PH_TABLE_MAGIC 0x50484e534b524e4cull
#define PH_HOST_MAGIC 0x50484e53484f5354ull

struct ph_rank_page {
    uint64_t magic, version;
    _Atomic uint64_t clock_ns, sent_seq;
    _Atomic uint64_t host_cpu_ns, blocked;
    _Atomic uint64_t kernel_launches, comm_launches;
    _Atomic uint64_t allocated_bytes, peak_driver_bytes;
    _Atomic uint64_t torch_peak_allocated, torch_peak_reserved;
    _Atomic uint64_t device, calls;
    _Atomic uint64_t unknown_reads, chosen_values; /* simulated/values/defined.c */
    _Atomic uint64_t busy_ns[PH_SOURCES];
    _Atomic uint64_t launches[PH_SOURCES];
    /* --host-time model: what was charged, by enum ph_host_level */
    _Atomic uint64_t host_calls[PH_HOST_LEVELS], host_ns[PH_HOST_LEVELS];
    _Atomic uint64_t pinned_bytes, peak_pinned_bytes; /* page-locked host memory */
    /* replay.c; repeated: beyond what was recorded */
    _Atomic uint64_t replayed_values, repeated_values;
};
_Static_assert(offsetof(struct ph_rank_page, clock_ns) == 16, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, calls) == 104, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, unknown_reads) == 112, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, busy_ns) == 128, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, launches) == 192, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, host_calls) == 256, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, host_ns) == 320, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, pinned_bytes) == 384, "wire-protocol.md");
_Static_assert(offsetof(struct ph_rank_page, replayed_values) == 400, "wire-protocol.md");

struct ph_table_slot {
    _Atomic uint64_t key, duration_ns;
    uint32_t source, drag_permille;
    /* works: how many, and from bit 8 on how many of them go ahead of the main one */
    uint32_t class, works;
};
struct ph_table_header {
    uint64_t magic, version, capacity, count;
    _Atomic uint64_t generation; /* grows when durations were revised */
    uint64_t reserved[3];
};

struct ph_host_slot { /* RUN_DIR/host.tbl: written before the job starts, never after */
    uint64_t key, mean_ns;
};
struct ph_host_header {
    uint64_t magic, version, capacity, count;
    uint64_t interruption_ns, unknown_ns, reserved[2];
};
_Static_assert(sizeof(struct ph_host_slot) == 16 && sizeof(struct ph_host_header) == 64,
               "wire-protocol.md");
_Static_assert(sizeof(struct ph_table_slot) == 32 && sizeof(struct ph_table_header) == 64,
               "wire-protocol.md");
#endif
