/* work/values_library.c - loads the values library for this process's torch, and reports why it
 * could not.
 *
 * Why it exists: a values library serves one version of torch, and only the process itself knows
 * which torch it runs. Without the library a job runs and reads zeros. So the warning must name the
 * cause: there is none for this torch, it does not fit this interceptor, or the loader refuses it.
 */
#define _GNU_SOURCE /* dlinfo */
#include "work/values_library.h"
#include "backend.h"
#include "base/environment.h"
#include "base/log.h"
#include "work/values_start.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The version that torch's Python package states beside its libraries, "2.11.0+cu130". False when
 * there is none. */
static bool read_version(const char *torch, char *version, size_t room)
{
    static const char states[] = "__version__ = '";
    char path[PATH_MAX], line[256];
    if (snprintf(path, sizeof path, "%s/version.py", torch) >= (int)sizeof path) return false;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, states, sizeof states - 1) != 0) continue;
        char *text = line + sizeof states - 1;
        text[strcspn(text, "'\n")] = 0;
        found = *text && !strchr(text, '/') && snprintf(version, room, "%s", text) < (int)room;
    }
    fclose(file);
    return found;
}

/* The folder of the torch in this process, .../site-packages/torch. False when it cannot be told.
 */
static bool find_torch(void *library, char *folder, size_t room)
{
    struct link_map *loaded;
    if (dlinfo(library, RTLD_DI_LINKMAP, &loaded) != 0) return false;
    if (snprintf(folder, room, "%s", loaded->l_name) >= (int)room) return false;
    for (int level = 0; level < 2; level++) { /* lib/libtorch_cpu.so */
        char *slash = strrchr(folder, '/');
        if (!slash) return false;
        *slash = 0;
    }
    return true;
}

/* Why the launcher found and made no library for a version. False when it did not look at that one.
 */
static bool read_reason(const char *folder, const char *version, char *reason, size_t room)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/libphantora-values-%s.txt", folder, version) >=
        (int)sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool found = fgets(reason, (int)room, file);
    fclose(file);
    if (found) reason[strcspn(reason, "\n")] = 0;
    return found;
}

/* The library for this process's torch in the folder `path`; `path` itself when it is no folder.
 * Returns false with the reason in `why`. */
static bool choose(const char *path, void *torch, char *chosen, char *why, size_t room)
{
    char folder[PATH_MAX], version[64];
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode))
        return snprintf(chosen, PATH_MAX, "%s", path) < PATH_MAX;
    if (!find_torch(torch, folder, sizeof folder)) snprintf(folder, sizeof folder, "?");
    if (!read_version(folder, version, sizeof version))
        return snprintf(why, room, "the version of torch in %s is not known", folder), false;
    if (snprintf(chosen, PATH_MAX, "%s/libphantora-values-%s.so", path, version) >= PATH_MAX)
        return snprintf(why, room, "%s: %s", path, strerror(ENAMETOOLONG)), false;
    if (access(chosen, R_OK) == 0) return true;
    char reason[512];
    if (read_reason(path, version, reason, sizeof reason))
        snprintf(why, room, "there is none for torch %s: %s", version, reason);
    else
        snprintf(why, room, "there is none for torch %s; `phantora-ns compile-values %s` makes one",
                 version, folder);
    return false;
}

/* The library, whose path goes to `path`; NULL with the reason in `why`. */
static void *open_library(void *torch, char *path, char *why, size_t room)
{
    const char *named = ph_env("PHANTORA_VALUES_LIB");
    if (!named) return snprintf(why, room, "the run names none (PHANTORA_VALUES_LIB)"), NULL;
    if (!choose(named, torch, path, why, room)) return NULL;
    if (access(path, R_OK) != 0) return snprintf(why, room, "%s: %s", path, strerror(errno)), NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) snprintf(why, room, "it cannot be loaded (%s)", dlerror());
    return library;
}

/* Whether the library runs; if not, `why` gets the reason. */
static bool start(void *torch, char *why, size_t room)
{
    char path[PATH_MAX];
    void *library = open_library(torch, path, why, room);
    if (!library) return false;
    int (*begin)(void) = (int (*)(void))dlsym(library, "phantora_values_start");
    switch (begin ? begin() : -1) {
    case VALUES_STARTED: return true;
    case VALUES_OTHER_TORCH:
        snprintf(why, room, "%s was built for another version of torch than the job's", path);
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
    char why[3 * PATH_MAX];
    void *torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_NOW);
    if (!torch) return; /* not a PyTorch process: there are no operators */
    if (!start(torch, why, sizeof why))
        ph_warn_for_run("the values library is not in use: %s; %s", why, ph_backend.without_values);
    dlclose(torch);
}

void ph_values_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
}

bool ph_values_allocate(void)
{
    static _Atomic bool begun;
    static _Thread_local bool inside; /* loading a library allocates */
    if (atomic_load_explicit(&begun, memory_order_acquire)) return true;
    if (inside) return false;
    inside = true;
    void *torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_NOW);
    if (torch && !atomic_exchange(&begun, true)) {
        char path[PATH_MAX], why[3 * PATH_MAX]; /* ph_values_load tells the reason */
        void *library = open_library(torch, path, why, sizeof why);
        void (*allocate)(void) =
            library ? (void (*)(void))dlsym(library, "phantora_values_allocate") : NULL;
        if (allocate) allocate();
    }
    if (torch) dlclose(torch);
    inside = false;
    return torch != NULL;
}
