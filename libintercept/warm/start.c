/* warm/start.c - decides, before a Python's main, whether it takes an image over.
 *
 * Why it exists: the first process of a kind has the image made, by a Python of its own that
 * imports the modules and ends; the others wait for that. All of them then become that Python.
 *
 * Rule: a process that does not take the image over starts as usual, and the run's report counts it
 * with the reason (RUN_DIR/warm/starts, one line for each process). */
#define _GNU_SOURCE
#include "backend.h"
#include "base/api.h"
#include "base/environment.h"
#include "base/fnv1a.h"
#include "warm/image.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { IMAGES_MOST = 4, MAKE_S = 300, TRIAL_S = 60, SIGNALS = 64, PATH_BYTES = 600 };

static struct sigaction handlers[SIGNALS + 1];
static char *key_at_start; /* of a process that makes an image; an import may change variables */

struct place {
    char image[PATH_BYTES], failed[PATH_BYTES], lock[PATH_BYTES], script[PATH_BYTES],
        said[PATH_BYTES], starts[PATH_BYTES], folder[PATH_BYTES];
};

static struct place place_of(const char *run_dir, const char *key)
{
    struct place place;
    char base[PATH_BYTES - 16];
    snprintf(base, sizeof base, "%s/warm/%016llx", run_dir,
             (unsigned long long)ph_fnv1a_text(PH_FNV1A, key));
    snprintf(place.folder, sizeof place.folder, "%s/warm", run_dir);
    snprintf(place.starts, sizeof place.starts, "%s/warm/starts", run_dir);
    snprintf(place.image, sizeof place.image, "%s.image", base);
    snprintf(place.failed, sizeof place.failed, "%s.failed", base);
    snprintf(place.lock, sizeof place.lock, "%s.lock", base);
    snprintf(place.script, sizeof place.script, "%s.py", base);
    snprintf(place.said, sizeof place.said, "%s.said", base);
    return place;
}

/* One line, written at once. */
static void append(const char *path, const char *text)
{
    char line[512];
    int length = snprintf(line, sizeof line, "%s\n", text);
    if (length >= (int)sizeof line) length = sizeof line - 1;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (write(fd, line, (size_t)length) < 0) { /* the report lacks one start */
    }
    close(fd);
}

/* The processes that are worth an image: ranks, what multiprocessing spawns, and torchrun. */
static bool is_wanted(int argc, char **argv)
{
    static const char *const launchers[] = {"torch.distributed.run", "torch.distributed.launch",
                                            NULL};
    int at = ph_python_main(argc, argv);
    if (getenv("RANK")) return true;
    if (!at) return false;
    const char *name = strrchr(argv[at], '/');
    if (!strcmp(name ? name + 1 : argv[at], "torchrun")) return true;
    for (const char *const *module = launchers; *module; module++)
        if (!strcmp(argv[at], "-m") && !strcmp(argv[at + 1], *module)) return true;
    return !strcmp(argv[argc - 1], "--multiprocessing-fork");
}

static int count_images(const struct place *place)
{
    int count = 0;
    DIR *folder = opendir(place->folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        count += strstr(entry->d_name, ".lock") != NULL;
    if (folder) closedir(folder);
    return count;
}

/* The environment of the process that makes the image: this one's, without what may differ, and
 * with room for two more. */
static char **bare_environment(char **environment)
{
    size_t count = 0, kept = 0;
    while (environment[count]) count++;
    char **bare = calloc(count + 3, sizeof *bare);
    for (size_t i = 0; bare && i < count; i++)
        if (!ph_variable_may_differ(environment[i])) bare[kept++] = environment[i];
    return bare;
}

static void alone(const char *said)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 1; i <= SIGNALS; i++) sigaction(i, &usual, NULL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null = open("/dev/null", O_RDONLY);
    int out = open(said, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (null < 0 || out < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(70);
    for (int fd = 3; fd < 4096; fd++) close(fd);
}

/* Runs this program with these last words; false, unless it ends well in time. */
static bool run(const struct place *place, char **argv, char **environment, int limit_s)
{
    pid_t child = fork();
    if (child == 0) {
        alone(place->said);
        char program[4096] = "";
        if (readlink("/proc/self/exe", program, sizeof program - 1) > 0)
            execve(program, argv, environment);
        _exit(70);
    }
    const struct timespec pause = {.tv_nsec = 5000000};
    for (int64_t waits = 0; child > 0; waits++) {
        int status;
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (ended < 0 && errno != EINTR) return false;
        if (waits == limit_s * INT64_C(200)) kill(child, SIGKILL);
        nanosleep(&pause, NULL);
    }
    return false;
}

static bool is_empty(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char byte;
    bool empty = fd < 0 || read(fd, &byte, 1) <= 0;
    if (fd >= 0) close(fd);
    return empty;
}

static const char *first_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file || !fgets(line, (int)size, file)) line[0] = 0;
    if (file) fclose(file);
    line[strcspn(line, "\n")] = 0;
    return line;
}

/* Leaves the reason where `make_or_fail` looks for it. Returns false. */
static bool could_not(const struct place *place, const char *what, const char *path)
{
    char line[PATH_BYTES + 80];
    snprintf(line, sizeof line, "cannot %s %s: %s", what, path, strerror(errno));
    append(place->said, line);
    return false;
}

/* Has the image made, of all modules or only of the first, and tries it once. */
static bool make_image(const struct place *place, int argc, char **argv, char **environment,
                       bool only_first)
{
    char fresh[PATH_BYTES + 8], variable[PATH_BYTES + 40];
    int at = ph_python_main(argc, argv);
    char **words = calloc((size_t)at + 3, sizeof *words);
    char **bare = bare_environment(environment);
    FILE *script = fopen(place->script, "we");
    if (!words || !bare || !script) return false;
    bool written = fputs("raise SystemExit(70)  # stands for any script while the image is made\n",
                         script) >= 0;
    if (fclose(script) || !written) return could_not(place, "write", place->script);
    unlink(place->said);
    size_t last = 0;
    while (bare[last]) last++;
    if (only_first) bare[last++] = (char *)"PHANTORA_WARM_FIRST=1";
    snprintf(fresh, sizeof fresh, "%s.new", place->image);
    snprintf(variable, sizeof variable, "PHANTORA_WARM_TAKE=%s", fresh);
    bare[last] = variable;
    int count = 0;
    for (int i = 0; i < at; i++)
        if (i == 0 || !ph_python_option_is_own(argv[i])) words[count++] = argv[i];
    words[count] = (char *)place->script;
    bool good = run(place, words, bare, MAKE_S) && is_empty(place->said);
    snprintf(variable, sizeof variable, "PHANTORA_WARM_TRY=%s", fresh);
    words[count] = (char *)"-c", words[count + 1] = (char *)"raise SystemExit(70)";
    good = good && run(place, words, bare, TRIAL_S) && is_empty(place->said);
    if (good && rename(fresh, place->image)) good = could_not(place, "make", place->image);
    if (!good) unlink(fresh);
    free(words);
    free(bare);
    return good;
}

static void make_or_fail(const struct place *place, int argc, char **argv, char **environment)
{
    char said[256], line[320];
    if (make_image(place, argc, argv, environment, false)) return;
    first_line(place->said, said, sizeof said);
    bool served = make_image(place, argc, argv, environment, true);
    snprintf(line, sizeof line, "no image%s: %s", served ? " of all modules" : "",
             said[0] ? said : "its process failed");
    append(served ? place->starts : place->failed, line);
}

static void make_once(const struct place *place, int argc, char **argv, char **environment)
{
    if (count_images(place) >= IMAGES_MOST && access(place->lock, F_OK)) return;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    int fd = open(place->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    int locked;
    do locked = fcntl(fd, F_SETLKW, &lock);
    while (locked && errno == EINTR);
    if (!locked && access(place->image, F_OK) && access(place->failed, F_OK))
        make_or_fail(place, argc, argv, environment);
    close(fd); /* which lets the next one look */
}

static const char *start_warm(const char *run_dir, int argc, char **argv, char **environment,
                              struct place *place)
{
    static char reason[256];
    const char *why = NULL;
    char *key = ph_image_key(argc, argv, environment, &why);
    *place = place_of(run_dir, key ? key : "");
    if (!key) return why;
    if (access(place->image, F_OK)) make_once(place, argc, argv, environment);
    const char *trial = getenv("PHANTORA_WARM_TRY");
    if (!access(trial ? trial : place->image, F_OK))
        why = ph_image_restore(trial ? trial : place->image, key, argc, argv, environment);
    else
        why = first_line(place->failed, reason, sizeof reason)[0]
                  ? reason
                  : "there are too many kinds of processes";
    free(key);
    return why;
}

__attribute__((constructor)) static void start(int argc, char **argv, char **environment)
{
    const char *run_dir = ph_env("PHANTORA_RUN_DIR");
    bool trial = getenv("PHANTORA_WARM_TRY") != NULL;
    if (ph_backend.leads || !run_dir || !ph_env("PHANTORA_WARM") || argc < 2 ||
        !dlsym(RTLD_DEFAULT, "Py_GetArgcArgv"))
        return;
    struct place place;
    const char *why = trial ? NULL : ph_env("PHANTORA_WARM_NOT");
    if (getenv("PHANTORA_WARM_TAKE")) {
        key_at_start = ph_image_key(argc, argv, environment, &why);
        return;
    }
    if (!trial && !is_wanted(argc, argv)) return;
    if (trial) {
        char *key = ph_image_key(argc, argv, environment, &why);
        if (key) why = ph_image_restore(getenv("PHANTORA_WARM_TRY"), key, argc, argv, environment);
        append("/dev/stderr", why);
        _exit(71);
    }
    place = place_of(run_dir, "");
    if (!why) why = start_warm(run_dir, argc, argv, environment, &place);
    append(place.starts, why);
}

/* What the kernel was told of signals: Python's own. A signal that this process was started to
 * ignore stays ignored. */
static void restore_signals(void)
{
    for (int i = 1; i <= SIGNALS; i++) {
        struct sigaction now;
        if (sigaction(i, NULL, &now)) continue;
        bool started_ignored = now.sa_handler == SIG_IGN;
        if (handlers[i].sa_handler != SIG_DFL && !started_ignored) sigaction(i, &handlers[i], NULL);
    }
}

/* Python's -u, for C's streams; the start-up hook sees to Python's own. */
static void restore_streams(const struct ph_arrival *arrival)
{
    int at = ph_python_main(arrival->argc, arrival->argv);
    for (int i = 1; i < at; i++)
        if (!strcmp(arrival->argv[i], "-u")) {
            setvbuf(stdin, NULL, _IONBF, 0);
            setvbuf(stdout, NULL, _IONBF, 0);
            setvbuf(stderr, NULL, _IONBF, 0);
        }
}

/* Makes the image that PHANTORA_WARM_TAKE names; 0 if that succeeded. Every process that takes it
 * over returns from the same call, with 1. -1: no image; the reason is on stderr. */
PH_API(int, phantora_take_image, (int argc, char **argv))
{
    char why[256] = "";
    const char *path = getenv("PHANTORA_WARM_TAKE");
    for (int i = 1; i <= SIGNALS; i++) sigaction(i, NULL, &handlers[i]);
    int result = -1;
    if (!path || !key_at_start)
        snprintf(why, sizeof why, "PHANTORA_WARM_TAKE is not set, or no image serves this process");
    else if (!ph_python_locate(argc, argv))
        snprintf(why, sizeof why, "the command line of this Python is not where it was expected");
    else
        result = ph_image_take(path, key_at_start, why, sizeof why);
    if (result == 1) {
        const struct ph_arrival *arrival = ph_image_arrival();
        environ = arrival->environment;
        restore_signals();
        restore_streams(arrival);
        ph_python_command(arrival->argc, arrival->argv);
    }
    if (result < 0) append("/dev/stderr", why);
    return result;
}

/* Where in the arguments of this process stands what Python runs. */
PH_API(int, phantora_main_argument, (void))
{
    const struct ph_arrival *arrival = ph_image_arrival();
    return ph_python_main(arrival->argc, arrival->argv);
}

PH_API(void, phantora_count_start, (const char *how))
{
    struct place place = place_of(ph_env("PHANTORA_RUN_DIR"), "");
    append(place.starts, how);
}
