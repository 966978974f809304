/* warm/image.h - the memory of a Python that has imported its modules, as a file.
 *
 * Why it exists: a rank that starts takes this memory over instead of importing torch. Pages that
 * it does not write are the page cache's, and all ranks of all nodes share them. The process was
 * started by an ordinary exec, so all that the kernel knows of it is its own: PID, parent,
 * namespaces, descriptors, signals, limits, arguments.
 *
 * Rule: a process that cannot take the memory over exactly starts as usual. */
#ifndef PH_IMAGE_H
#define PH_IMAGE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>

#define PH_IMAGE_MAGIC 0x31304547414d4950ull /* "PIMAGE01" */
enum { PH_PAGE = 4096, PH_VDSO_MOST = 8, PH_RSEQ_SIGNATURE = 0x53053053 };

/* What a mapping of the image is made of. */
enum ph_image_kind {
    PH_IMAGE_ZERO,   /* anonymous, not written yet */
    PH_IMAGE_FILE,   /* a file that the process had mapped, unchanged */
    PH_IMAGE_SHARED, /* likewise, mapped shared and only to be read */
    PH_IMAGE_PAGES,  /* pages of the image, shared until they are written */
    PH_IMAGE_COPY,   /* pages of the image, read into memory of the process's own */
    PH_IMAGE_WIPED,  /* anonymous, empty in every child (MADV_WIPEONFORK) */
    PH_IMAGE_DROPPED /* likewise, and the kernel may drop it (MAP_DROPPABLE) */
};

struct ph_image_map {
    uint64_t start, length;
    uint64_t offset; /* in the file, or in the image */
    uint32_t kind, protection;
    uint64_t path; /* in the image's strings; of FILE and SHARED */
    uint64_t device, inode, size, modified_ns;
    /* of COPY: the part at the mapping's end that the image holds */
    uint64_t copied;
};

/* What a function call preserves (System V ABI of x86-64), the stack, and where to go on. */
struct ph_registers {
    uint64_t rbx, rbp, r12, r13, r14, r15, rsp, rip;
};

struct ph_range {
    uint64_t start, end;
};

/* What the kernel keeps for the one thread beside its registers. */
struct ph_thread_state {
    uint64_t fs, tid_address, robust_list, robust_length, rseq, rseq_length;
};

struct ph_image {
    uint64_t magic;
    uint64_t key_length;
    uint64_t map_count, string_bytes;
    uint64_t arrival; /* address of the struct ph_arrival that the new process finds */
    struct ph_registers registers;
    struct ph_thread_state thread;
    struct ph_range kernel_pages[PH_VDSO_MOST]; /* [vvar], [vdso] and the like */
    uint64_t kernel_page_count;
    uint64_t start_code, end_code, start_data, end_data, start_brk, brk;
    uint64_t auxiliary[64], auxiliary_bytes; /* /proc/self/auxv */
    /* then: the key, the maps, the strings, each after the other; then the pages */
};

/* What the process that takes an image over was started with. The image keeps a place for it. */
struct ph_arrival {
    int argc;
    char **argv, **environment;
    struct ph_range plan; /* to be unmapped */
};

/* ---- take.c ---- */
/* Writes this process's memory to `path`. Returns 0 in the process itself. In a process that took
 * the image over it returns once more, with 1. Else returns -1 and says why in `why`. */
int ph_image_take(const char *path, const char *key, char *why, size_t why_size);
/* What the process was started with that took the image over. */
const struct ph_arrival *ph_image_arrival(void);

/* ---- restore.c ---- */
/* Becomes the process of the image `path`, if its key is `key`. Returns only if this process
 * cannot, and says why. */
const char *ph_image_restore(const char *path, const char *key, int argc, char **argv,
                             char **environment);

/* ---- maps.c ---- */
struct ph_mapping {
    struct ph_range range;
    uint64_t offset, inode;
    uint32_t protection;
    bool shared, wiped, droppable;
    bool strange;     /* no image can hold it */
    const char *path; /* "" when it has none */
};
/* Reads /proc/self/maps into `buffer`, which the mappings' paths point into. Allocates nothing.
 * Returns the number of mappings, -1 if they do not fit. */
int ph_read_maps(struct ph_mapping *mappings, int most, char *buffer, size_t size);
/* Adds what /proc/self/smaps says of them beside. False if it says nothing of one. */
bool ph_read_flags(struct ph_mapping *mappings, int count, char *buffer, size_t size);
/* Whether the kernel provides this mapping, and moves it on request. */
bool ph_is_kernel_page(const struct ph_mapping *mapping);
/* The number at position `field` (from 1) of /proc/self/stat. */
uint64_t ph_stat_field(int field);
/* The length with which glibc registers its rseq area at `*area`; 0 if it has none. */
uint64_t ph_rseq(uint64_t *area);

/* ---- command.c ---- */
/* Where in a Python's arguments the options end and what it runs begins: a script, -m or -c. 0: the
 * command is one that an image does not serve. */
int ph_python_main(int argc, char **argv);
/* An option that an image is made without: the process that takes it over sees to it. */
bool ph_python_option_is_own(const char *word);
/* The variables that a library or Python may read while it is loaded must be equal. Those of one
 * rank or node differ. */
bool ph_variable_may_differ(const char *entry);
/* All that must be equal between a process and its image, as text. NULL, and `why`: no image
 * serves this process. */
char *ph_image_key(int argc, char **argv, char **environment, const char **why);

/* ---- python.c ---- */
/* Finds where the interpreter keeps its command line, which must be that of `argv`, whose last
 * word is a script. False if it cannot be told. */
bool ph_python_locate(int argc, char **argv);
/* Gives the interpreter another command line. */
void ph_python_command(int argc, char **argv);

/* ---- arrive.c ---- */
/* All that runs while the process has no libraries. */
struct ph_step {
    uint64_t start, length, offset, copied;
    const char *path;
    uint32_t protection;
    int32_t kind;
};
struct ph_plan {
    struct ph_range leave[1024]; /* to be unmapped */
    uint64_t leave_count;
    struct {
        uint64_t from, to, length;
    } move[PH_VDSO_MOST];
    uint64_t move_count;
    struct ph_step *steps;
    uint64_t step_count;
    int image_fd;
    struct prctl_mm_map mm;
    uint64_t auxiliary[64];
    struct ph_thread_state thread;
    struct ph_registers registers;
    struct ph_arrival arrival, *arrival_at;
};
_Noreturn void ph_arrive(const struct ph_plan *plan);
/* The machine code of ph_arrive, which may be copied anywhere. */
struct ph_range ph_arrive_code(void);
/* Returns 0; and 1 once more when a process goes on from these registers. */
int ph_registers_save(struct ph_registers *registers) __attribute__((returns_twice));
#endif
