/* link/connection.c - this process's connection to the hub: one ZeroMQ DEALER socket, and the rank
 * statistics.
 *
 * Why it exists: the interceptor opens libzmq by path at run time, so it needs no library at load
 * time. All threads share one socket.
 *
 * Rule: `socket_lock` is held for every libzmq call. A thread that waits polls the socket's
 * descriptor without the lock. The thread that receives a reply hands it to its owner. */
#include "link/connection.h"
#include "backend.h"
#include "base/environment.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/real_time.h"
#include "link/diagnostics.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    ZMQ_DEALER = 5,
    ZMQ_FD = 14,
    ZMQ_LINGER = 17,
    ZMQ_SNDHWM = 23,
    ZMQ_RCVHWM = 24,
    ZMQ_DONTWAIT = 1
};
enum { POLL_MS = 500 }; /* how much later a thread notices its time-out while another one polls */
/* zmq_msg_t: 64 bytes, pointer-aligned (libzmq 4.x ABI) */
typedef struct {
    unsigned char opaque[64];
} zmq_msg;

static struct {
    void *(*ctx_new)(void);
    void *(*socket)(void *, int);
    int (*setsockopt)(void *, int, const void *, size_t);
    int (*getsockopt)(void *, int, void *, size_t *);
    int (*connect)(void *, const char *);
    int (*send)(void *, const void *, size_t, int);
    int (*msg_init)(zmq_msg *);
    int (*msg_recv)(zmq_msg *, void *, int);
    void *(*msg_data)(zmq_msg *);
    size_t (*msg_size)(const zmq_msg *);
    int (*msg_close)(zmq_msg *);
} zmq;

struct arrival { /* a reply that its owner has not taken yet */
    uint64_t req;
    struct arrival *next;
    size_t length;
    unsigned char data[];
};

static pthread_mutex_t PH_FREE_IN_CHILD socket_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t socket_news = PTHREAD_COND_INITIALIZER;
static void *the_socket;
static int socket_fd = -1, wake_fd = -1;
static bool polling; /* a thread waits in poll() on behalf of all threads */
static struct arrival *arrivals;
static uint64_t sequence;
static _Atomic uint64_t request_counter;
static struct ph_rank_stats *_Atomic stats; /* set once everything in it is */

bool ph_hub_connected(void) { return ph_stats() != NULL; }
struct ph_rank_stats *ph_stats(void) { return atomic_load_explicit(&stats, memory_order_acquire); }
uint64_t ph_request_id(void) { return atomic_fetch_add(&request_counter, 1) + 1; }

static void *symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (!address) ph_die("libzmq lacks %s; reinstall pyzmq", name);
    return address;
}

static void load_zmq(void)
{
    const char *path = ph_env("PHANTORA_LIBZMQ");
    if (!path) ph_die("PHANTORA_LIBZMQ is not set; start the job with the phantora-ns command");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) ph_die("cannot open libzmq: %s; reinstall pyzmq", dlerror());
    zmq.ctx_new = (void *(*)(void))symbol(library, "zmq_ctx_new");
    zmq.socket = (void *(*)(void *, int))symbol(library, "zmq_socket");
    zmq.setsockopt = (int (*)(void *, int, const void *, size_t))symbol(library, "zmq_setsockopt");
    zmq.getsockopt = (int (*)(void *, int, void *, size_t *))symbol(library, "zmq_getsockopt");
    zmq.connect = (int (*)(void *, const char *))symbol(library, "zmq_connect");
    zmq.send = (int (*)(void *, const void *, size_t, int))symbol(library, "zmq_send");
    zmq.msg_init = (int (*)(zmq_msg *))symbol(library, "zmq_msg_init");
    zmq.msg_recv = (int (*)(zmq_msg *, void *, int))symbol(library, "zmq_msg_recv");
    zmq.msg_data = (void *(*)(zmq_msg *))symbol(library, "zmq_msg_data");
    zmq.msg_size = (size_t (*)(const zmq_msg *))symbol(library, "zmq_msg_size");
    zmq.msg_close = (int (*)(zmq_msg *))symbol(library, "zmq_msg_close");
}

static const char *make_stats(const char *run_dir)
{
    static char name[64];
    snprintf(name, sizeof name, "%s-%d-%llx",
             ph_env("PHANTORA_NODE") ? ph_env("PHANTORA_NODE") : "0", (int)getpid(),
             (unsigned long long)ph_real_ns());
    char path[512];
    snprintf(path, sizeof path, "%s/" PH_RANK_STATS_FILE "/%s", run_dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) ph_die("cannot make %s: %s", path, strerror(errno));
    /* Allocates real blocks: on a sparse file, a full disk would kill the job with SIGBUS. */
    int failed = posix_fallocate(fd, 0, 4096);
    if (failed) ph_die("cannot make %s: %s; make room there", path, strerror(failed));
    /* The lock tells the hub our PID, and that this process is alive. The descriptor stays open:
     * closing it would release the lock. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    if (fcntl(fd, F_SETLK, &lock) != 0) ph_die("cannot lock %s: %s", path, strerror(errno));
    struct ph_rank_stats *fresh = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fresh == MAP_FAILED) ph_die("cannot map %s: %s", path, strerror(errno));
    fresh->version = PH_RANK_STATS_VERSION;
    fresh->magic = PH_RANK_STATS_MAGIC;
    stats = fresh;
    return name;
}

static int64_t env_int(const char *name)
{
    const char *text = ph_env(name);
    return text ? strtoll(text, NULL, 10) : -1;
}

static void say_hello(const char *name)
{
    struct ph_pack body = {0};
    char argv0[256] = "";
    FILE *cmdline = fopen("/proc/self/cmdline", "re");
    if (cmdline) {
        if (!fgets(argv0, sizeof argv0, cmdline)) argv0[0] = 0;
        fclose(cmdline);
    }
    ph_pack_uint(&body, PH_PROTOCOL_VERSION);
    ph_pack_map(&body, 9);
    ph_pack_str(&body, "pid"), ph_pack_int(&body, getpid());
    ph_pack_str(&body, "rank"), ph_pack_int(&body, env_int("RANK"));
    ph_pack_str(&body, "local_rank"), ph_pack_int(&body, env_int("LOCAL_RANK"));
    ph_pack_str(&body, "world_size"), ph_pack_int(&body, env_int("WORLD_SIZE"));
    ph_pack_str(&body, "node"),
        ph_pack_int(&body, env_int("PHANTORA_NODE") < 0 ? 0 : env_int("PHANTORA_NODE"));
    ph_pack_str(&body, "shm"), ph_pack_str(&body, name);
    ph_pack_str(&body, "argv0"), ph_pack_str(&body, argv0);
    ph_pack_str(&body, "leader"), ph_pack_int(&body, ph_backend.leads);
    ph_pack_str(&body, "measures"),
        ph_pack_int(&body, ph_backend.measures && ph_backend.measures());
    ph_send(PH_MESSAGE_HELLO, &body, 2);
    ph_pack_free(&body);
}

/* Receives every frame that has arrived. WELCOME is the reply to request 0. */
static void drain_locked(void)
{
    for (;;) {
        zmq_msg message;
        zmq.msg_init(&message);
        if (zmq.msg_recv(&message, the_socket, ZMQ_DONTWAIT) < 0) {
            zmq.msg_close(&message);
            return;
        }
        struct ph_reply frame = {zmq.msg_data(&message), zmq.msg_size(&message), 0, false, NULL};
        ph_read_array(&frame);
        int64_t type = ph_read_int(&frame);
        uint64_t req = type == PH_MESSAGE_HELLO ? 0 : (uint64_t)ph_read_int(&frame);
        /* ERROR: a mistake of the job (ranks disagree on a collective) or a defect of ours. In both
         * cases the process cannot go on. What the hub has said is not said by every rank again. */
        if (type == PH_MESSAGE_ERROR) {
            size_t n;
            const unsigned char *text = ph_read_bytes(&frame, &n);
            if (ph_read_int(&frame)) ph_end();
            ph_die("%.*s", (int)n, text ? (const char *)text : "the hub refused a request");
        }
        struct arrival *arrival = malloc(sizeof *arrival + frame.length);
        if (!arrival) ph_die("out of host memory for a reply of %zu bytes", frame.length);
        *arrival = (struct arrival){req, arrivals, frame.length};
        memcpy(arrival->data, frame.data, frame.length);
        arrivals = arrival;
        zmq.msg_close(&message);
        pthread_cond_broadcast(&socket_news);
        if (polling && write(wake_fd, &(uint64_t){1}, 8) <
                           0) { /* the counter is full, so the poller wakes anyway */
        }
    }
}

/* A forked child shares the parent's socket memory but not its I/O thread. It connects anew when it
 * uses CUDA. */
static void forget(void)
{
    ph_log_to(NULL);
    pthread_cond_init(&socket_news, NULL);
    the_socket = NULL;
    arrivals = NULL;
    polling = false;
    sequence = 0;
    stats = NULL; /* the mapping belongs to the parent; it stays mapped, unused */
    if (socket_fd >= 0) close(socket_fd);
    socket_fd = wake_fd = -1;
}

const char *ph_hub_connect(void)
{
    const char *run_dir = ph_env("PHANTORA_RUN_DIR");
    if (!run_dir) ph_die("PHANTORA_RUN_DIR is not set; start the job with the phantora-ns command");
    load_zmq();
    const char *name = make_stats(run_dir);
    char address[512];
    snprintf(address, sizeof address, "ipc://%s/hub.sock", run_dir);
    void *context = zmq.ctx_new();
    void *fresh = context ? zmq.socket(context, ZMQ_DEALER) : NULL;
    int none = 0, linger = 1000;
    if (!fresh || zmq.setsockopt(fresh, ZMQ_SNDHWM, &none, sizeof none) ||
        zmq.setsockopt(fresh, ZMQ_RCVHWM, &none, sizeof none) ||
        zmq.setsockopt(fresh, ZMQ_LINGER, &linger, sizeof linger) || zmq.connect(fresh, address))
        ph_die("cannot connect to the hub at %s", address);
    size_t size = sizeof socket_fd;
    if (zmq.getsockopt(fresh, ZMQ_FD, &socket_fd, &size))
        ph_die("libzmq gives no descriptor for its socket");
    wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    the_socket = fresh;
    say_hello(name);
    struct ph_reply welcome;
    if (!ph_wait(0, &welcome, 60000)) ph_die("the hub at %s does not answer", address);
    int64_t client = ph_read_int(&welcome);
    if (client < 0) { /* {"error": TEXT} */
        size_t n;
        welcome.at++;
        ph_read_bytes(&welcome, &n);
        const unsigned char *why = ph_read_bytes(&welcome, &n);
        ph_die("the hub refuses this process: %.*s", (int)n, why ? (const char *)why : "");
    }
    ph_reply_free(&welcome);
    ph_log_to(ph_send_diagnostic);
    ph_forget_in_child(forget);
    return name;
}

void ph_send(enum ph_message type, const struct ph_pack *body, uint32_t fields)
{
    struct ph_pack frame = {0};
    pthread_mutex_lock(&socket_lock);
    ph_pack_array(&frame, fields + 2);
    ph_pack_uint(&frame, type);
    ph_pack_uint(&frame, ++sequence);
    ph_pack_raw(&frame, body->data, body->length);
    if (frame.length > PH_MESSAGE_MAX_BYTES)
        ph_die(
            "a message of %zu bytes is more than the hub takes (%d); communicate these values in "
            "smaller groups",
            frame.length, PH_MESSAGE_MAX_BYTES);
    atomic_store_explicit(&stats->sent_seq, sequence, memory_order_release);
    int sent;
    do sent = zmq.send(the_socket, frame.data, frame.length, 0);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) ph_die("cannot send to the hub: %s", strerror(errno));
    drain_locked(); /* sending may consume the descriptor's edge for a reply */
    pthread_mutex_unlock(&socket_lock);
    ph_pack_free(&frame);
}

static int64_t milliseconds(void) { return (int64_t)(ph_real_ns() / 1000000); }

static struct arrival *claim_locked(uint64_t req)
{
    for (struct arrival **link = &arrivals; *link; link = &(*link)->next)
        if ((*link)->req == req) {
            struct arrival *mine = *link;
            *link = mine->next;
            return mine;
        }
    return NULL;
}

bool ph_wait(uint64_t req, struct ph_reply *reply, int timeout_ms)
{
    int64_t deadline = milliseconds() + timeout_ms;
    struct arrival *mine;
    if (ph_backend.hub_wait) ph_backend.hub_wait(true);
    atomic_fetch_add(&stats->waiting, 1);
    pthread_mutex_lock(&socket_lock);
    drain_locked();
    while (!(mine = claim_locked(req)) && (timeout_ms < 0 || milliseconds() < deadline)) {
        if (polling) { /* another thread watches the socket, and tells of it */
            pthread_cond_wait(&socket_news, &socket_lock);
            continue;
        }
        polling = true;
        pthread_mutex_unlock(&socket_lock);
        struct pollfd fds[2] = {{socket_fd, POLLIN, 0}, {wake_fd, POLLIN, 0}};
        int64_t left = timeout_ms < 0 ? POLL_MS : deadline - milliseconds();
        poll(fds, 2, left < 0 ? 0 : left < POLL_MS ? (int)left : POLL_MS);
        uint64_t count;
        if (fds[1].revents && read(wake_fd, &count, 8) < 0) { /* another waker was faster */
        }
        pthread_mutex_lock(&socket_lock);
        polling = false;
        drain_locked();
        pthread_cond_broadcast(&socket_news);
    }
    pthread_mutex_unlock(&socket_lock);
    atomic_fetch_sub(&stats->waiting, 1);
    if (ph_backend.hub_wait) ph_backend.hub_wait(false);
    if (!mine) return false;
    *reply = (struct ph_reply){mine->data, mine->length, 0, false, mine};
    ph_read_array(reply);
    /* [type, req, ...]; WELCOME has no req */
    if (ph_read_int(reply) != PH_MESSAGE_HELLO) ph_read_int(reply);
    return true;
}

void ph_reply_free(struct ph_reply *reply)
{
    if (reply->bad) ph_die("a reply of the hub cannot be read; rebuild with make build");
    free(reply->owner);
    reply->owner = NULL;
}
