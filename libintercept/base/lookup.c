/* base/lookup.c - dlsym and dlvsym, which return our functions to a job that looks them up by
 * name.
 *
 * Why it exists: a preloaded library wins where a symbol is linked, but not where it is looked up
 * in one library. Triton's launcher and parts of PyTorch open libcuda.so.1 and call dlsym;
 * Transformer Engine's cuDNN front end does so with libcudart.so.12 or 13. For the names that we
 * export, dlsym and dlvsym return our functions to them. NVIDIA's own libraries get the real
 * functions: what they do inside a call is part of that call. Where we call one of them
 * (simulated/math/cudnn_real.c), it must reach its own parts.
 *
 * Rule: for everything else, both functions behave as if we were absent. That includes RTLD_NEXT,
 * which depends on the return address, so we reach the real functions by tail calls. */
#define _GNU_SOURCE /* dladdr, RTLD_NEXT */
#include "base/lookup.h"
#include "base/api.h"
#include "base/log.h"

#include <dlfcn.h>
#include <gnu/lib-names.h>
#include <link.h>
#include <stdatomic.h>

static _Atomic(ph_dlsym_type) real_dlsym;
static _Atomic(ph_dlvsym_type) real_dlvsym;

/* Not the C library's: a sanitizer replaces those, and calls dlsym before they work. */
static bool starts(const char *text, const char *prefix)
{
    while (*prefix && *text == *prefix) text++, prefix++;
    return !*prefix;
}

static bool equal(const char *one, const char *other)
{
    while (*one && *one == *other) one++, other++;
    return *one == *other;
}

/* Finds the default version of a function in the symbol table of one library (System V ABI,
 * "Dynamic Linking"). The layout of DT_GNU_HASH is that of glibc's elf/dl-lookup.c. glibc has
 * already relocated the addresses in the dynamic section. NULL: the library does not define the
 * function. */
static void *in_table(const struct link_map *library, const char *name)
{
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Half) *versions = NULL;
    const char *names = NULL;
    /* DT_GNU_HASH: four header words (number of buckets, first symbol in the buckets, filter words,
     * filter shift), then filter, buckets and hashes */
    const uint32_t *table = NULL;
    for (const ElfW(Dyn) *entry = library->l_ld; entry->d_tag != DT_NULL; entry++) {
        const void *there = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) symbols = there;
        if (entry->d_tag == DT_STRTAB) names = there;
        if (entry->d_tag == DT_VERSYM) versions = there;
        if (entry->d_tag == DT_GNU_HASH) table = there;
    }
    if (!symbols || !names || !versions || !table) return NULL;
    uint32_t hash = 5381;
    for (const char *letter = name; *letter; letter++) hash = hash * 33 + (unsigned char)*letter;
    const uint32_t *buckets = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + table[2]),
                   *hashes = buckets + table[0];
    for (uint32_t i = buckets[hash % table[0]]; i >= table[1]; i++) {
        const ElfW(Sym) *symbol = symbols + i;
        bool hidden = versions[i] & 0x8000; /* an older version */
        if (!hidden && symbol->st_shndx != SHN_UNDEF && equal(names + symbol->st_name, name))
            return (void *)(library->l_addr + symbol->st_value);
        if (hashes[i - table[1]] & 1) break; /* the last symbol of the bucket */
    }
    return NULL;
}

static const char *file_name(const char *path)
{
    const char *name = path;
    for (; *path; path++)
        if (*path == '/') name = path + 1;
    return name;
}

/* Finds the C library's dlsym and dlvsym. A lookup by name would return ours, or the emulated GPU's
 * where a leader runs over one. So both are read from the C library's symbol table, found through
 * the list that debuggers read. That also works in a constructor or an allocator, where this may be
 * the first call of the process. */
static void find_real(void)
{
    for (const struct link_map *library = _r_debug.r_map; library; library = library->l_next) {
        const char *file = file_name(library->l_name);
        /* libdl: before glibc 2.34 */
        if (!equal(file, LIBC_SO) && !equal(file, LIBDL_SO)) continue;
        ph_dlsym_type plain = (ph_dlsym_type)in_table(library, "dlsym");
        ph_dlvsym_type versioned = (ph_dlvsym_type)in_table(library, "dlvsym");
        if (!plain || !versioned) continue;
        atomic_store(&real_dlvsym, versioned);
        atomic_store(&real_dlsym, plain);
        return;
    }
    ph_die("the C library has no dlsym and dlvsym that could be found");
}

ph_dlsym_type ph_real_dlsym(void)
{
    ph_dlsym_type found = atomic_load_explicit(&real_dlsym, memory_order_acquire);
    if (found) return found;
    find_real();
    return atomic_load(&real_dlsym);
}

ph_dlvsym_type ph_real_dlvsym(void)
{
    ph_real_dlsym();
    return atomic_load(&real_dlvsym);
}

/* A handle of this library for dlsym; NULL: the C library does not know it. */
static void *own_handle(void)
{
    static _Atomic(void *) self;
    void *own = atomic_load_explicit(&self, memory_order_relaxed);
    if (!own) {
        Dl_info info;
        if (!dladdr((void *)own_handle, &info) ||
            !(own = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)))
            return NULL;
        atomic_store(&self, own);
    }
    return own;
}

void *ph_own_symbol(const char *name)
{
    void *own = own_handle();
    return own ? ph_real_dlsym()(own, name) : NULL;
}

/* The same for a function of one version of a library (PH_API_12). */
static void *own_version(const char *name, const char *version)
{
    void *own = own_handle(), *found = NULL;
    if (own && version) found = ph_real_dlvsym()(own, name, version);
    return found ? found : ph_own_symbol(name);
}

/* The soname of the library that defines a function. NVIDIA's runtime names its symbols' version
 * after it. */
static const char *soname_of(const void *function)
{
    Dl_info info;
    const struct link_map *library = NULL;
    const char *names = NULL;
    if (!dladdr1(function, &info, (void **)&library, RTLD_DL_LINKMAP) || !library) return NULL;
    for (const ElfW(Dyn) *entry = library->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB) names = (const char *)entry->d_un.d_ptr;
    for (const ElfW(Dyn) *entry = library->l_ld; names && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_SONAME) return names + entry->d_un.d_val;
    return NULL;
}

/* Whether the caller is one of NVIDIA's libraries, this library, or the emulated GPU under a
 * leader. */
static bool is_below(const void *caller)
{
    static const char *const names[] = {
        "libcuda.so",   "libcudart", "libcublas", "libcudnn",   "libcufft",   "libcusparse",
        "libcusolver",  "libcurand", "libcupti",  "libcufile",  "libnvidia-", "libnvrtc",
        "libnvJitLink", "libnvperf", "libnccl",   "libphantora"};
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname) return false;
    const char *name = file_name(info.dli_fname);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (starts(name, names[i])) return true;
    return false;
}

/* Our function of that name if this caller gets it, else NULL. */
static void *replacement(void *handle, const char *name, const void *caller)
{
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) return NULL;
    if (!(name[0] == 'c' && name[1] == 'u') && !starts(name, "nccl") && !starts(name, "nvml") &&
        !starts(name, "__cuda"))
        return NULL;
    void *own = ph_own_symbol(name);
    return own && !is_below(caller) ? own : NULL;
}

/* The real functions must find our caller's return address on the stack. GCC before 15 has no
 * musttail; there, optimization makes the tail call. */
#if defined __has_attribute && __has_attribute(musttail)
#define TAIL_CALLS
#define TAIL __attribute__((musttail))
#else
#define TAIL_CALLS __attribute__((optimize("O2")))
#define TAIL
#endif

PH_EXPORT void *dlsym(void *restrict handle, const char *restrict name);
TAIL_CALLS PH_EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
    /* a lookup that tests whether the library has the function must get the true answer */
    if (replacement(handle, name, __builtin_return_address(0))) {
        void *real = ph_real_dlsym()(handle, name);
        return real ? own_version(name, soname_of(real)) : NULL;
    }
    TAIL return ph_real_dlsym()(handle, name);
}

PH_EXPORT void *dlvsym(void *restrict handle, const char *restrict name,
                       const char *restrict version);
TAIL_CALLS PH_EXPORT void *dlvsym(void *restrict handle, const char *restrict name,
                                  const char *restrict version)
{
    void *own = replacement(handle, name, __builtin_return_address(0));
    ph_dlvsym_type real = ph_real_dlvsym();
    if (own && real(handle, name, version)) return own_version(name, version);
    TAIL return real(handle, name, version);
}
