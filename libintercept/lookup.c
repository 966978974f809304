/* lookup.c - symbols that the job looks up by name get ours too.
 *
 * Why it exists: a preloaded library wins wherever a symbol is linked, but not where it is looked up in one library: Triton's
 * launcher and parts of PyTorch open libcuda.so.1 and ask dlsym, Transformer Engine's cuDNN front end asks libcudart.so.13. For
 * exactly the names that we export they get ours. NVIDIA's own libraries must not: what they do inside of a call is part of that
 * call, and where we ask one of them (simulated/cudnn_real.c) it must reach its own parts. Rule: everything else must see dlsym
 * behave as if we were not there, RTLD_NEXT included, which goes by the return address: the real one is reached by a tail call. */
#define _GNU_SOURCE /* dladdr, RTLD_NEXT, dlvsym */
#include "shim.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic(ph_dlsym_type) real_dlsym;

static ph_dlsym_type find_dlsym(void)
{
    /* glibc's own versions of dlsym: since 2.34 on all, 2.2.5 on x86-64, 2.17 on aarch64. */
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        ph_dlsym_type found = (ph_dlsym_type)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
        if (found) return atomic_store(&real_dlsym, found), found;
    }
    ph_die("the C library has no dlsym that could be found");
}

ph_dlsym_type ph_real_dlsym(void)
{
    ph_dlsym_type found = atomic_load_explicit(&real_dlsym, memory_order_relaxed);
    return found ? found : find_dlsym();
}

void *ph_own_symbol(const char *name)
{
    static _Atomic(void *) self;
    void *own = atomic_load_explicit(&self, memory_order_relaxed);
    if (!own) {
        Dl_info info;
        if (!dladdr((void *)ph_own_symbol, &info) || !(own = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD))) return NULL;
        atomic_store(&self, own);
    }
    return ph_real_dlsym()(own, name);
}

static bool starts(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

/* NVIDIA's own libraries, ourselves, and the emulated GPU that a leader may run over. */
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
    return own && !is_below(caller) && ph_real_dlsym()(handle, name) ? own : NULL; /* who asks whether there is one must be told the truth */
}

PH_EXPORT void *dlsym(void *restrict handle, const char *restrict name);
__attribute__((optimize("O2"))) PH_EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
    void *own = replacement(handle, name, __builtin_return_address(0));
    if (own) return own;
    return ph_real_dlsym()(handle, name);
}
