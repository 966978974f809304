/* modules.c - code loaded at run time, observed on its way to the driver.
 *
 * Why it exists: a simulated rank reads the accesses of a kernel from its cubin
 * (work/accesses.h), and what a leader records must hold the same numbers. */
#include "base/api.h"
#include "base/log.h"
#include "leader/gpu/map.h"
#include "leader/gpu/modules.h"
#include "leader/leader.h"
#include "leader/measure/measure.h"
#include "time/host_clock.h"
#include "work/cubin.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct code { /* one kernel of a module */
    char *name;
    struct ph_accesses accesses;
    struct code *next;
};

static struct ph_map modules = PH_MAP_INIT;              /* by CUmodule */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the lists in it */

static void forget(struct code *code)
{
    for (struct code *next; code; code = next) {
        next = code->next;
        free(code->name);
        free(code);
    }
}

/* Time spent here is ours. */
static void keep(void *module, const void *data, size_t bytes)
{
    struct ph_cubin image;
    struct code *codes = NULL;
    ph_host_pause();
    bool opened = ph_cubin_open(&image, data, bytes);
    for (unsigned i = 0; opened && i < image.header.e_shnum; i++) {
        Elf64_Shdr section = ph_cubin_section(&image, i);
        const char *name = ph_cubin_code_of(&image, &section);
        if (!name) continue;
        struct code *code = malloc(sizeof *code);
        if (!code) ph_die("out of host memory");
        *code = (struct code){strdup(name), ph_accesses_of(&image, &section), codes};
        codes = code;
    }
    pthread_mutex_lock(&lock);
    forget(codes ? ph_map_put(&modules, module, codes) : ph_map_take(&modules, module));
    pthread_mutex_unlock(&lock);
    ph_host_resume();
}

static void keep_file(void *module, const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0) return;
    bool sized = fstat(file, &status) == 0 && status.st_size > 0;
    size_t bytes = sized ? (size_t)status.st_size : 0;
    void *data = sized ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    close(file);
    if (data == MAP_FAILED) return;
    keep(module, data, bytes);
    munmap(data, bytes);
}

/* not wrapped; declared for its type */
int cuFuncGetModule(void **module, void *function);

struct ph_accesses ph_lead_accesses(void *function, const char *name)
{
    __typeof__(&cuFuncGetModule) of =
        (__typeof__(&cuFuncGetModule))ph_real_maybe("cuFuncGetModule");
    struct ph_accesses found = {0};
    void *module;
    if (!of || of(&module, function) != CUDA_OK) return found;
    pthread_mutex_lock(&lock);
    for (struct code *code = ph_map_get(&modules, module); code; code = code->next)
        if (strcmp(code->name, name) == 0) found = code->accesses;
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- loading and unloading ---- */
static int loaded(int error, void **module, const void *image)
{
    if (!error) keep(*module, image, ph_cubin_extent(image));
    return error;
}

PH_API(int, cuModuleLoadData, (void **module, const void *image))
{
    ph_host_call(PH_CALL_MALLOC);
    int error = PH_REAL_TIMED(PH_CALL_MALLOC, PH_REAL(cuModuleLoadData)(module, image));
    return ph_leave(), loaded(error, module, image);
}
PH_API(int, cuModuleLoadDataEx,
       (void **module, const void *image, unsigned count, int *options, void **values))
{
    ph_host_call(PH_CALL_MALLOC);
    int error = PH_REAL_TIMED(PH_CALL_MALLOC,
                              PH_REAL(cuModuleLoadDataEx)(module, image, count, options, values));
    return ph_leave(), loaded(error, module, image);
}
PH_API(int, cuModuleLoad, (void **module, const char *path))
{
    ph_host_call(PH_CALL_MALLOC);
    int error = PH_REAL_TIMED(PH_CALL_MALLOC, PH_REAL(cuModuleLoad)(module, path));
    ph_leave();
    if (!error) keep_file(*module, path);
    return error;
}

PH_API(int, cuModuleUnload, (void *module))
{
    pthread_mutex_lock(&lock);
    forget(ph_map_take(&modules, module));
    pthread_mutex_unlock(&lock);
    return ph_lead_forget_loaded(), PH_REAL(cuModuleUnload)(module);
}
PH_API(int, cuLibraryUnload, (void *library))
{
    return ph_lead_forget_loaded(), PH_REAL(cuLibraryUnload)(library);
}
