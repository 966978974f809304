/* injector.c - makes one call of one process of a run fail, or be slow.
 *
 * Why it exists: a full disk, a limit or a slow file system may hit any call. It is preloaded into
 * all processes of a run. A site is the role of a process, the name of a call and what the call is
 * about (a path, or what a descriptor refers to), less what differs between runs. Variables:
 *
 *     FAULT_ROOT   the folder of the run's files; "ROOT" in sites
 *     FAULT_JOB    the name of the job's script
 *     FAULT_LOG    a file that gets a line "PID ROLE CALL ABOUT" for each call
 *     FAULT_AT     "ROLE CALL ABOUT": the site that is hit ...
 *     FAULT_NTH    ... at its N-th call within a process ...
 *     FAULT_ERRNO  ... with this error; 0: it takes FAULT_MS ms longer instead
 *     FAULT_FIRED  a file that is made then; only one process can make it
 *     FAULT_STAYS  if set, all later calls of the site fail too, as on a disk that stays full
 *
 * A call that reads the time of day sets it back by an hour, for all processes, when it is hit.
 *
 * Calls that the C library makes itself are not seen. In processes of the job only the
 * interceptor's own calls and those on the run's files are sites. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)
#define REAL(name) ((__typeof__(&name))real(#name))
/* The value of a call: `failed` where it is to fail, else what the real one says. */
#define FAIL_OR(failed, about, call)                 \
    do {                                             \
        int fault = struck(__func__, about, CALLER); \
        if (fault) return errno = fault, failed;     \
        return call;                                 \
    } while (0)

enum { SITE_MAX = 600, BACK_S = 3600 };
static char role[16]; /* empty: not read yet */
static bool of_the_job;
static _Atomic int seen;
static int (*real_open)(const char *, int, ...);

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static void read_role(void)
{
    char text[4096];
    const char *job = getenv("FAULT_JOB");
    int fd = real_open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : (ssize_t)syscall(SYS_read, fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (length < 0) length = 0;
    for (ssize_t i = 0; i < length; i++)
        if (!text[i]) text[i] = ' ';
    text[length] = 0;
    const char *name = "other";
    if (strstr(text, "phantora-sandbox guard"))
        name = "guard";
    else if (strstr(text, "phantora-sandbox sweep"))
        name = "sweep";
    else if (strstr(text, "phantora-sandbox run"))
        name = "sandbox";
    else if (strstr(text, "phantora_ns.hub"))
        name = "hub";
    else if (strstr(text, "-m phantora_ns "))
        name = "launcher";
    else if (strstr(text, "phantora_ns."))
        name = "writer";
    else if (job && strstr(text, job))
        name = strstr(text, " rank") || getenv("TORCHELASTIC_RUN_ID") ? "rank" /* torchrun's too */
               : strstr(text, " worker")                              ? "worker"
                                                                      : "agent";
    of_the_job = strchr("rwao", *name) && strcmp(name, "writer");
    strcpy(role, name);
}

__attribute__((constructor)) static void start(void)
{
    if (!real_open) real_open = (int (*)(const char *, int, ...))real("open");
    if (!*role && getenv("FAULT_ROOT")) read_role();
}

/* What differs from run to run is left out: numbers, and the random part of temporary names. */
static void normalise(const char *text, char *out)
{
    const char *root = getenv("FAULT_ROOT");
    char *end = out + SITE_MAX - 64;
    if (root && !strncmp(text, root, strlen(root))) {
        out = stpcpy(out, "ROOT");
        text += strlen(root);
    }
    while (*text && out < end) {
        if (!strncmp(text, "phantora-ns-", 12) && strlen(text) >= 20) {
            out = stpcpy(out, "phantora-ns-*");
            text += 20;
        } else if (!strncmp(text, "/ranks/", 7)) {
            out = stpcpy(out, "/ranks/*");
            break;
        } else if (!strncmp(text, "/.", 2) && strlen(text) > 10 && text[strlen(text) - 9] == '.' &&
                   !strchr(text + 1, '/')) {
            out = mempcpy(out, text, strlen(text) - 8);
            *out++ = '*';
            break;
        } else if (*text >= '0' && *text <= '9') {
            while ((*text >= '0' && *text <= '9')) text++;
            *out++ = '#';
        } else if (*text == ' ') {
            *out++ = '_', text++;
        } else {
            *out++ = *text++;
        }
    }
    *out = 0;
}

static bool from_interceptor(void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libphantora");
}

/* Modules and libraries are many, and one of them is as good as another. */
static bool is_code(const char *about)
{
    const char *dot = strrchr(about, '.');
    if (strstr(about, "/phantora_ns/data/")) return false;
    return (dot && (!strcmp(dot, ".py") || !strcmp(dot, ".pyc") || !strncmp(dot, ".so", 3))) ||
           strstr(about, "/lib/python") || strstr(about, "/site-packages") ||
           strstr(about, "/libintercept/") || strstr(about, "/bin/py") ||
           strstr(about, "pyvenv.cfg") || strstr(about, "openssl.cnf");
}

static void keep(const char *site)
{
    const char *file = getenv("FAULT_LOG");
    char line[SITE_MAX + 128];
    int fd = file ? real_open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0) return;
    int length = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), site);
    ((ssize_t (*)(int, const void *, size_t))real("write"))(fd, line, (size_t)length);
    close(fd);
}

static bool is_clock(const char *call) { return !strcmp(call, "clock"); }

/* The error of this call, 0 for none. */
static int struck(const char *call, const char *about, void *caller)
{
    static __thread bool inside;
    if (inside || !getenv("FAULT_ROOT")) return 0;
    int before = errno, error = 0;
    inside = true;
    start();
    char site[SITE_MAX + 64], what[SITE_MAX];
    normalise(about, what);
    if (of_the_job && strncmp(what, "ROOT/", 5) && !from_interceptor(caller)) goto out;
    if (!strncmp(what, "ROOT/log", 8)) goto out;
    snprintf(site, sizeof site, "%s %s %s", role, call, is_code(what) ? "CODE" : what);
    keep(site);
    const char *at = getenv("FAULT_AT"), *nth = getenv("FAULT_NTH");
    if (!at || strcmp(at, site)) goto out;
    int count = atomic_fetch_add(&seen, 1) + 1;
    if (count < atoi(nth) || (count > atoi(nth) && !getenv("FAULT_STAYS"))) goto out;
    int fired = real_open(getenv("FAULT_FIRED"), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fired >= 0) close(fired);
    if (fired < 0 && !getenv("FAULT_STAYS")) goto out;
    error = atoi(getenv("FAULT_ERRNO"));
    if (!error && !is_clock(call)) poll(NULL, 0, atoi(getenv("FAULT_MS")));
out:
    inside = false;
    errno = before;
    return error;
}

static const char *of_descriptor(int fd, char *target)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, SITE_MAX - 1);
    target[length < 0 ? 0 : length] = 0;
    return target;
}

/* Descriptors that stand for nothing of ours: events, timers, /proc/self. */
static bool matters(const char *target)
{
    return *target && strncmp(target, "anon_inode:", 11) && strncmp(target, "/dev/", 5);
}

#define ON_DESCRIPTOR(failed, fd, call)                                                \
    do {                                                                               \
        char target[SITE_MAX];                                                         \
        if (!getenv("FAULT_ROOT") || !matters(of_descriptor(fd, target))) return call; \
        FAIL_OR(failed, target, call);                                                 \
    } while (0)

/* ---- files ---- */

#define MODE(flags)                          \
    mode_t mode = 0;                         \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list list;                        \
        va_start(list, flags);               \
        mode = va_arg(list, mode_t);         \
        va_end(list);                        \
    }

EXPORT int open(const char *path, int flags, ...)
{
    MODE(flags)
    FAIL_OR(-1, path, REAL(open)(path, flags, mode));
}

EXPORT int open64(const char *path, int flags, ...)
{
    MODE(flags)
    FAIL_OR(-1, path, REAL(open64)(path, flags, mode));
}

EXPORT int openat(int at, const char *path, int flags, ...)
{
    MODE(flags)
    FAIL_OR(-1, path, REAL(openat)(at, path, flags, mode));
}

EXPORT int openat64(int at, const char *path, int flags, ...)
{
    MODE(flags)
    FAIL_OR(-1, path, REAL(openat64)(at, path, flags, mode));
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
    FAIL_OR(NULL, path, REAL(fopen)(path, mode));
}

EXPORT FILE *fopen64(const char *path, const char *mode)
{
    FAIL_OR(NULL, path, REAL(fopen64)(path, mode));
}

EXPORT ssize_t write(int fd, const void *data, size_t size)
{
    ON_DESCRIPTOR(-1, fd, REAL(write)(fd, data, size));
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    ON_DESCRIPTOR(-1, fd, REAL(pwrite)(fd, data, size, at));
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    ON_DESCRIPTOR(-1, fd, REAL(pwrite64)(fd, data, size, at));
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
    ON_DESCRIPTOR(-1, fd, REAL(writev)(fd, parts, count));
}

EXPORT ssize_t read(int fd, void *data, size_t size)
{
    ON_DESCRIPTOR(-1, fd, REAL(read)(fd, data, size));
}

EXPORT ssize_t pread(int fd, void *data, size_t size, off_t at)
{
    ON_DESCRIPTOR(-1, fd, REAL(pread)(fd, data, size, at));
}

EXPORT ssize_t pread64(int fd, void *data, size_t size, off64_t at)
{
    ON_DESCRIPTOR(-1, fd, REAL(pread64)(fd, data, size, at));
}

EXPORT int ftruncate(int fd, off_t size) { ON_DESCRIPTOR(-1, fd, REAL(ftruncate)(fd, size)); }

EXPORT int ftruncate64(int fd, off64_t size) { ON_DESCRIPTOR(-1, fd, REAL(ftruncate64)(fd, size)); }

EXPORT int fallocate(int fd, int mode, off_t at, off_t size)
{
    ON_DESCRIPTOR(-1, fd, REAL(fallocate)(fd, mode, at, size));
}

EXPORT int posix_fallocate(int fd, off_t at, off_t size)
{
    ON_DESCRIPTOR(fault, fd, REAL(posix_fallocate)(fd, at, size));
}

EXPORT int posix_fallocate64(int fd, off64_t at, off64_t size)
{
    ON_DESCRIPTOR(fault, fd, REAL(posix_fallocate64)(fd, at, size));
}

EXPORT int mkdir(const char *path, mode_t mode) { FAIL_OR(-1, path, REAL(mkdir)(path, mode)); }

EXPORT int rename(const char *from, const char *to) { FAIL_OR(-1, to, REAL(rename)(from, to)); }

EXPORT int symlink(const char *to, const char *path) { FAIL_OR(-1, path, REAL(symlink)(to, path)); }

/* ---- memory ---- */

EXPORT void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    char target[SITE_MAX] = "anonymous";
    if (getenv("FAULT_ROOT") && fd >= 0) of_descriptor(fd, target);
    FAIL_OR(MAP_FAILED, target, REAL(mmap)(at, size, protection, flags, fd, offset));
}

EXPORT void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset)
{
    char target[SITE_MAX] = "anonymous";
    if (getenv("FAULT_ROOT") && fd >= 0) of_descriptor(fd, target);
    FAIL_OR(MAP_FAILED, target, REAL(mmap64)(at, size, protection, flags, fd, offset));
}

EXPORT int memfd_create(const char *name, unsigned flags)
{
    FAIL_OR(-1, name, REAL(memfd_create)(name, flags));
}

/* ---- processes and namespaces ---- */

EXPORT pid_t fork(void) { FAIL_OR(-1, "-", REAL(fork)()); }

/* The real one would return twice from this frame. */
EXPORT pid_t vfork(void) { FAIL_OR(-1, "-", REAL(fork)()); }

EXPORT int unshare(int flags) { FAIL_OR(-1, "-", REAL(unshare)(flags)); }

EXPORT int mount(const char *source, const char *target, const char *type, unsigned long flags,
                 const void *data)
{
    FAIL_OR(-1, target, REAL(mount)(source, target, type, flags, data));
}

EXPORT long syscall(long number, ...)
{
    static long (*real_syscall)(long, ...);
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (!real_syscall) real_syscall = (long (*)(long, ...))real("syscall");
    int fault = number == SYS_clone ? struck("clone", "-", CALLER) : 0;
    if (fault) return errno = fault, -1;
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* ---- descriptors ---- */

EXPORT int socket(int domain, int type, int protocol)
{
    char about[32];
    snprintf(about, sizeof about, "family_%s",
             domain == AF_UNIX      ? "unix"
             : domain == AF_NETLINK ? "netlink"
                                    : "other");
    FAIL_OR(-1, about, REAL(socket)(domain, type, protocol));
}

EXPORT int socketpair(int domain, int type, int protocol, int pair[2])
{
    FAIL_OR(-1, "-", REAL(socketpair)(domain, type, protocol, pair));
}

EXPORT int bind(int fd, const struct sockaddr *address, socklen_t size)
{
    FAIL_OR(-1, "-", REAL(bind)(fd, address, size));
}

EXPORT int connect(int fd, const struct sockaddr *address, socklen_t size)
{
    FAIL_OR(-1, "-", REAL(connect)(fd, address, size));
}

EXPORT int pipe(int pair[2]) { FAIL_OR(-1, "-", REAL(pipe)(pair)); }

EXPORT int pipe2(int pair[2], int flags) { FAIL_OR(-1, "-", REAL(pipe2)(pair, flags)); }

EXPORT int epoll_create1(int flags)
{
    extern int epoll_create1(int);
    FAIL_OR(-1, "-", REAL(epoll_create1)(flags));
}

EXPORT int eventfd(unsigned start, int flags)
{
    extern int eventfd(unsigned, int);
    FAIL_OR(-1, "-", REAL(eventfd)(start, flags));
}

/* ---- the time of day ---- */

/* How far it is set back by now, seconds. */
static long back(void *caller)
{
    static _Atomic bool set;
    const char *at = getenv("FAULT_AT"), *fired = getenv("FAULT_FIRED");
    if (!getenv("FAULT_ROOT")) return 0;
    struck("clock", "-", caller);
    if (!at || !fired || !strstr(at, " clock ")) return 0;
    if (!set && access(fired, F_OK)) return 0;
    set = true;
    return BACK_S;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *now)
{
    int error = REAL(clock_gettime)(clock, now);
    if (!error && clock == CLOCK_REALTIME) now->tv_sec -= back(CALLER);
    return error;
}

EXPORT int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int error = REAL(gettimeofday)(now, zone);
    if (!error) now->tv_sec -= back(CALLER);
    return error;
}

EXPORT time_t time(time_t *now)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (now) *now = t.tv_sec;
    return t.tv_sec;
}
