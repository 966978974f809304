/* real.c - the real libraries below this one, and driver functions that the runtime looks up by
 * name (dlsym: base/lookup.c).
 *
 * Why it exists: every wrapped call ends in the real function, wherever the job has loaded it from.
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "base/log.h"
#include "base/lookup.h"
#include "leader/leader.h"
#include <dlfcn.h>
#include <string.h>

/* ---- the libraries below ---- */
/* the first matching prefix counts */
static const struct {
    const char *prefix, *name[2];
} libraries[] = {
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
        if (strncmp(name, libraries[i].prefix, strlen(libraries[i].prefix)) == 0)
            return *which = (int)i, libraries[i].name[0];
    return NULL;
}

/* A library that PyTorch has not put into the global scope is found by its name. The driver may not
 * be loaded yet. */
static void *find_in_library(const char *name, bool load)
{
    int which;
    if (!library_of(name, &which)) return NULL;
    for (int loaded = 1; loaded >= !load; loaded--)
        for (int i = 0; i < 2 && libraries[which].name[i]; i++) {
            void *library =
                dlopen(libraries[which].name[i], RTLD_LAZY | (loaded ? RTLD_NOLOAD : 0));
            void *found = library ? ph_real_dlsym()(library, name) : NULL;
            if (found) return found; /* the handle is kept, so that the function stays valid */
        }
    return NULL;
}

void *ph_real_maybe(const char *name)
{
    /* Functions that torch calls during its import must not fix the list of GPUs: a script may
     * still set CUDA_VISIBLE_DEVICES. */
    if (strncmp(name, "__cuda", 6) != 0 && strncmp(name, "nvml", 4) != 0) ph_lead_environment();
    void *found = ph_real_dlsym()(RTLD_NEXT, name);
    return found ? found : find_in_library(name, true);
}

bool ph_real_loaded(const char *name)
{
    return ph_real_dlsym()(RTLD_NEXT, name) || find_in_library(name, false);
}

void *ph_real(const char *name)
{
    int which = 0;
    void *found = ph_real_maybe(name);
    if (!found) {
        const char *library = library_of(name, &which);
        ph_die("the leader needs %s, which %s of this machine does not have%s", name,
               library ? library : "no library",
               library && strcmp(library, "libcuda.so.1") == 0
                   ? " (is the NVIDIA driver installed, and new enough?)"
                   : "");
    }
    return found;
}

/* ---- driver functions that the runtime looks up by name ---- */
/* Replaces a driver function that the runtime has found under its plain name. Current headers mean
 * the suffixed form. Functions for per-thread default streams (flag 2) are different ones and stay
 * the driver's. */
static void replace_entry(const char *name, void **function, unsigned long long flags)
{
    enum { PER_THREAD_DEFAULT_STREAM = 2 };
    char newest[128];
    if (!function || !*function || strlen(name) + 4 > sizeof newest) return;
    strcat(strcpy(newest, name), "_v2");
    void *own = ph_own_symbol(newest);
    if (!own) own = ph_own_symbol(name);
    if (own && flags & PER_THREAD_DEFAULT_STREAM)
        ph_warn("%s for per-thread default streams was asked for: the leader does not observe it",
                name);
    else if (own)
        *function = own;
}

PH_API(int, cudaGetDriverEntryPointByVersion,
       (const char *name, void **function, unsigned version, unsigned long long flags, int *status))
{
    int error = PH_REAL(cudaGetDriverEntryPointByVersion)(name, function, version, flags, status);
    if (!error) replace_entry(name, function, flags);
    return error;
}
PH_API(int, cudaGetDriverEntryPoint,
       (const char *name, void **function, unsigned long long flags, int *status))
{
    int error = PH_REAL(cudaGetDriverEntryPoint)(name, function, flags, status);
    if (!error) replace_entry(name, function, flags);
    return error;
}
