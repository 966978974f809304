/* work/values_library.c - loads the values library into a PyTorch process, and reports why it could
 * not.
 *
 * Why it exists: without the library a job runs and reads zeros. So the warning must name the
 * cause: the library was never built, it does not fit this torch or this interceptor, or the loader
 * refuses it. */
#include "work/values_library.h"
#include "backend.h"
#include "base/environment.h"
#include "base/log.h"
#include "work/values_start.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Whether the library runs; if not, `why` gets the reason. */
static bool start(const char *path, char *why, size_t room)
{
    if (!path) return snprintf(why, room, "the run names none (PHANTORA_VALUES_LIB)"), false;
    if (access(path, R_OK) != 0)
        return snprintf(why, room,
                        "%s: %s; `make values` builds it, or says what is missing for that", path,
                        strerror(errno)),
               false;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return snprintf(why, room,
                        "it cannot be loaded (%s); `make values` builds it for the torch of its "
                        "environment",
                        dlerror()),
               false;
    int (*begin)(void) = (int (*)(void))dlsym(library, "phantora_values_start");
    switch (begin ? begin() : -1) {
    case VALUES_STARTED: return true;
    case VALUES_OTHER_TORCH:
        snprintf(why, room,
                 "%s was built for another version of torch than the job's; `make values` builds "
                 "it for the torch of its environment",
                 path);
        break;
    case VALUES_NO_CALLBACK:
        snprintf(why, room, "the job's torch did not take the callback of %s", path);
        break;
    default:
        snprintf(why, room,
                 "%s and libphantora.so are of different builds; `make native` builds both", path);
        break;
    }
    return false;
}

static void load(void)
{
    char why[700];
    void *torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_NOW);
    if (!torch) return; /* not a PyTorch process: there are no operators */
    dlclose(torch);
    if (!start(ph_env("PHANTORA_VALUES_LIB"), why, sizeof why))
        ph_warn("the values library is not in use: %s; %s", why, ph_backend.without_values);
}

void ph_values_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
}
