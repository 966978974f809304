/* real.c - the real libraries below, and how calls that would go past this one are led through it.
 *
 * Why it exists: a preloaded library wins wherever a symbol is linked, but not where it is looked up by name: Triton's launcher
 * and parts of PyTorch open libcuda.so.1 and ask dlsym, or the runtime (cudaGetDriverEntryPoint). For exactly the names that we
 * wrap they get ours. NVIDIA's own libraries must not: what they do inside of a call is part of that call, and they know nothing
 * of logical devices. Rule: everything else must see dlsym behave as if we were not there, RTLD_NEXT included, which goes by the
 * return address: the real one is reached by a tail call. */
#define _GNU_SOURCE /* dladdr, RTLD_NEXT, dlvsym */
#include "leader.h"
#include <dlfcn.h>
#include <string.h>

typedef void *(*dlsym_type)(void *, const char *);
static _Atomic(dlsym_type) real_dlsym;

static dlsym_type find_dlsym(void)
{
    /* glibc's own versions of dlsym: since 2.34 on all, 2.2.5 on x86-64, 2.17 on aarch64. */
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        dlsym_type found = (dlsym_type)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
        if (found) return atomic_store(&real_dlsym, found), found;
    }
    ph_die("the C library has no dlsym that could be found");
}

static dlsym_type the_dlsym(void)
{
    dlsym_type found = atomic_load_explicit(&real_dlsym, memory_order_relaxed);
    return found ? found : find_dlsym();
}

/* ---- the libraries below ---------------------------------------------------------------------------------------------------- */
static const struct { const char *prefix, *name[2]; } libraries[] = { /* the first prefix that fits */
    {"cublasLt", {"libcublasLt.so.13", "libcublasLt.so.12"}},
    {"cublas", {"libcublas.so.13", "libcublas.so.12"}},
    {"cudnn", {"libcudnn.so.9", NULL}},
    {"cupti", {"libcupti.so.13", "libcupti.so.12"}},
    {"cuda", {"libcudart.so.13", "libcudart.so.12"}},
    {"__cuda", {"libcudart.so.13", "libcudart.so.12"}},
    {"nvml", {"libnvidia-ml.so.1", NULL}},
    {"cu", {"libcuda.so.1", NULL}},
};

static const char *library_of(const char *name, int *which)
{
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if (strncmp(name, libraries[i].prefix, strlen(libraries[i].prefix)) == 0) return *which = (int)i, libraries[i].name[0];
    return NULL;
}

/* A library that PyTorch has not put into the global scope is found by its name; the driver's may not be loaded yet. */
static void *find_in_library(const char *name, bool load)
{
    int which;
    if (!library_of(name, &which)) return NULL;
    for (int loaded = 1; loaded >= !load; loaded--)
        for (int i = 0; i < 2 && libraries[which].name[i]; i++) {
            void *library = dlopen(libraries[which].name[i], RTLD_LAZY | (loaded ? RTLD_NOLOAD : 0));
            void *found = library ? the_dlsym()(library, name) : NULL;
            if (found) return found; /* the handle is kept: what was found must stay */
        }
    return NULL;
}

void *ph_real_maybe(const char *name)
{
    /* What torch calls while it is imported must not fix the list of GPUs: a script may still set CUDA_VISIBLE_DEVICES. */
    if (strncmp(name, "__cuda", 6) != 0 && strncmp(name, "nvml", 4) != 0) ph_lead_environment();
    void *found = the_dlsym()(RTLD_NEXT, name);
    return found ? found : find_in_library(name, true);
}

bool ph_real_loaded(const char *name) { return the_dlsym()(RTLD_NEXT, name) || find_in_library(name, false); }

void *ph_real(const char *name)
{
    int which = 0;
    void *found = ph_real_maybe(name);
    if (!found) {
        const char *library = library_of(name, &which);
        ph_die("the leader needs %s, which %s of this machine does not have%s", name, library ? library : "no library",
               library && strcmp(library, "libcuda.so.1") == 0 ? " (is the NVIDIA driver installed, and new enough?)" : "");
    }
    return found;
}

/* ---- looking names up ----------------------------------------------------------------------------------------------------------- */
void *ph_own_symbol(const char *name)
{
    static _Atomic(void *) self;
    void *own = atomic_load_explicit(&self, memory_order_relaxed);
    if (!own) {
        Dl_info info;
        if (!dladdr((void *)ph_own_symbol, &info) || !(own = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD))) return NULL;
        atomic_store(&self, own);
    }
    return the_dlsym()(own, name);
}

static bool starts(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

/* NVIDIA's own libraries, and the emulated GPU that a leader may run over. */
static bool is_below(const void *caller)
{
    static const char *const names[] = {"libcuda.so", "libcudart", "libcublas", "libcudnn", "libcufft", "libcusparse", "libcusolver", "libcurand",
                                        "libcupti", "libcufile", "libnvidia-", "libnvrtc", "libnvJitLink", "libnvperf", "libnccl", "libphantora"};
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname) return false;
    const char *slash = strrchr(info.dli_fname, '/'), *name = slash ? slash + 1 : info.dli_fname;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (starts(name, names[i])) return true;
    return false;
}

static void *replacement(void *handle, const char *name, const void *caller)
{
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) return NULL;
    if (!(name[0] == 'c' && name[1] == 'u') && !starts(name, "nccl") && !starts(name, "nvml") && !starts(name, "__cuda")) return NULL;
    void *own = ph_own_symbol(name);
    return own && !is_below(caller) && the_dlsym()(handle, name) ? own : NULL; /* who asks whether there is one must be told the truth */
}

PH_EXPORT void *dlsym(void *restrict handle, const char *restrict name);
__attribute__((optimize("O2"))) PH_EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
    void *own = replacement(handle, name, __builtin_return_address(0));
    if (own) return own;
    return the_dlsym()(handle, name);
}

/* Ours for a driver function that the runtime has found under its plain name: the suffixed form is the one that current headers
 * mean. Functions for per-thread default streams (flag 2) are others and stay the driver's. */
static void replace_entry(const char *name, void **function, unsigned long long flags)
{
    enum { PER_THREAD_DEFAULT_STREAM = 2 };
    char newest[128];
    if (!function || !*function || strlen(name) + 4 > sizeof newest) return;
    strcat(strcpy(newest, name), "_v2");
    void *own = ph_own_symbol(newest);
    if (!own) own = ph_own_symbol(name);
    if (own && flags & PER_THREAD_DEFAULT_STREAM) ph_warn("%s for per-thread default streams was asked for: the leader does not observe it", name);
    else if (own) *function = own;
}

PH_EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, int *status);
PH_EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, int *status)
{
    int error = PH_REAL(cudaGetDriverEntryPointByVersion)(name, function, version, flags, status);
    if (!error) replace_entry(name, function, flags);
    return error;
}
PH_EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status);
PH_EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status)
{
    int error = PH_REAL(cudaGetDriverEntryPoint)(name, function, flags, status);
    if (!error) replace_entry(name, function, flags);
    return error;
}
