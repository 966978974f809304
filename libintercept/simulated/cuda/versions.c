/* versions.c - the tables of versions.gen.h, and the version of the runtime beside us. */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "simulated/cuda/versions.h"
#include "base/log.h"
#include "base/lookup.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST = 12, NEWEST = 13 };

struct ph_driver_entry {
    const char *name;
    /* the versions of CUDA that brought name, name_v2, name_v3..., as 1000 * major + 10 * minor */
    unsigned short since[5];
};
#include "simulated/cuda/versions.gen.h"

const struct ph_properties *ph_properties_layout(int major)
{
    return major == 12 ? &layout_12 : &layout_13;
}

size_t ph_pointer_attributes_bytes(int major)
{
    return major == 12 ? POINTER_ATTRIBUTES_12 : POINTER_ATTRIBUTES_13;
}

/* A function of NVIDIA's own library beside us; NULL: the process has not loaded that major. Only
 * functions that give a constant are called this way: they need no driver. */
static void *beside(const char *library, int major, const char *name)
{
    char soname[32];
    snprintf(soname, sizeof soname, "%s.so.%d", library, major);
    void *loaded = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    if (!loaded) return NULL;
    void *found = ph_real_dlsym()(loaded, name);
    dlclose(loaded); /* it stays: who loaded it still holds it */
    return found;
}

static int loaded_version(int major)
{
    int (*ask)(int *) = (int (*)(int *))beside("libcudart", major, "cudaRuntimeGetVersion");
    int version = 0;
    return ask && ask(&version) == 0 ? version : 0;
}

int ph_blas_version(void)
{
    enum { WITHOUT_THE_LIBRARY = 130100 }; /* that of CUDA 13.0 */
    static _Atomic int known;
    int version = atomic_load_explicit(&known, memory_order_relaxed);
    for (int major = NEWEST; !version && major >= OLDEST; major--) {
        size_t (*ask)(void) = (size_t (*)(void))beside("libcublasLt", major, "cublasLtGetVersion");
        if (ask) version = (int)ask();
    }
    atomic_store_explicit(&known, version, memory_order_relaxed);
    return version ? version : WITHOUT_THE_LIBRARY;
}

int ph_runtime_version(int major)
{
    static _Atomic int known[NEWEST + 1];
    int version = atomic_load_explicit(&known[major], memory_order_relaxed);
    if (version) return version;
    version = loaded_version(major);
    if (!version) {
        int other = OLDEST + NEWEST - major;
        version = major * 1000;
        ph_warn("this process calls CUDA's runtime %s libcudart.so.%d: it is answered as CUDA %d.0",
                loaded_version(other) ? "from code that is linked against no version of it, beside"
                                      : "without having loaded",
                loaded_version(other) ? other : major, major);
    }
    atomic_store_explicit(&known[major], version, memory_order_relaxed);
    return version;
}

static int by_name(const void *name, const void *entry)
{
    return strcmp(name, ((const struct ph_driver_entry *)entry)->name);
}

void *ph_driver_symbol(const char *name, int version)
{
    enum { FORMS = sizeof driver_entries[0].since / sizeof driver_entries[0].since[0] };
    const struct ph_driver_entry *entry =
        bsearch(name, driver_entries, sizeof driver_entries / sizeof driver_entries[0],
                sizeof driver_entries[0], by_name);
    char full[128];
    int form = 0;
    if (version > PH_DRIVER_VERSION) version = PH_DRIVER_VERSION;
    if (!entry || strlen(name) + 4 > sizeof full) return ph_own_symbol(name);
    while (form < FORMS && entry->since[form] && entry->since[form] <= version) form++;
    if (!form) return NULL;
    snprintf(full, sizeof full, form > 1 ? "%s_v%d" : "%s", name, form);
    return ph_own_symbol(full);
}
