/* supervise.c - the policy: builds the cluster, starts all nodes together, obeys the launcher, and
 * leaves nothing behind.
 *
 * Why it exists: no process, namespace, mount or folder of a run may remain, whichever process is
 * killed. The sandbox's own network namespace is the switch between the nodes. The channel to the
 * launcher is a SOCK_SEQPACKET socket.
 *
 * To the launcher:
 *   step NAME | failed NODE|- TEXT | up | noexec NODE TEXT
 *   exit NODE CODE | signal NODE NUMBER | gone NODE
 * From the launcher:
 *   signal NODE|all NUMBER | kill NODE|all
 *
 * A closed channel means that the launcher has died. Then every node is ended. */
#include "sandbox.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Closes the other nodes' lines, which a node must not hold. Nodes start in order, so only the
 * nodes before `mine` have lines. */
static void close_other_lines(const struct spec *spec, size_t mine)
{
    for (size_t i = 0; i < mine; i++)
        if (spec->nodes[i].line >= 0) close(spec->nodes[i].line);
}

static void start_node(struct spec *spec, size_t index)
{
    struct node *node = &spec->nodes[index];
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        die_with_errno("a socket pair for %s", node->name);
    unsigned long kinds =
        spec->isolate ? CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNS : 0;
    pid_t pid = (pid_t)syscall(SYS_clone, kinds | SIGCHLD, 0, 0, 0, 0);
    if (pid < 0) die_with_errno("creating the namespaces of %s", node->name);
    if (pid == 0) {
        close(pair[0]);
        close_other_lines(spec, index);
        node_init(spec, index, pair[1]);
    }
    close(pair[1]);
    node->init = pid;
    node->line = pair[0];
}

static void kill_node(const struct spec *spec, size_t index)
{
    /* without namespaces the node's init must live on to end its descendants */
    if (spec->nodes[index].init > 0)
        kill(spec->nodes[index].init, spec->isolate ? SIGKILL : SIGQUIT);
}

static void kill_all(const struct spec *spec)
{
    for (size_t i = 0; i < spec->node_count; i++) kill_node(spec, i);
}

/* Ends all nodes after one has ended too early. It reported the reason on the channel before it
 * closed its line, unless it was killed. */
static _Noreturn void give_up(struct spec *spec, size_t ended)
{
    int status = 0;
    while (waitpid(spec->nodes[ended].init, &status, 0) < 0 && errno == EINTR);
    spec->nodes[ended].init = 0;
    if (WIFSIGNALED(status)) report("gone %zu", ended);
    kill_all(spec);
    if (!spec->isolate) kill_descendants();
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR);
    _exit(EXIT_SETUP);
}

static void build(struct spec *spec)
{
    int bridge = -1;
    if (spec->isolate) {
        userns_enter();
        if (spec->steps) namespaces_probe();
        if (unshare(CLONE_NEWNET)) die_with_errno("creating the network namespace of the switch");
        bridge = bridge_make("phantora");
        step("bridge");
    } else if (prctl(PR_SET_CHILD_SUBREAPER, 1)) {
        die_with_errno("becoming the subreaper of the job");
    }
    for (size_t i = 0; i < spec->node_count; i++) start_node(spec, i);
    for (size_t i = 0; i < spec->node_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "node%zu", i);
        if (spec->isolate && !veth_make(name, bridge, "eth0", spec->nodes[i].init)) {
            if (errno == ESRCH) give_up(spec, i);
            die_with_errno("creating the veth pair %s", name);
        }
        if (send(spec->nodes[i].line, "w", 1, MSG_NOSIGNAL) != 1) give_up(spec, i);
    }
    if (spec->isolate) step("veth pairs");
    for (size_t i = 0; i < spec->node_count; i++) {
        char ready;
        if (read(spec->nodes[i].line, &ready, 1) != 1) give_up(spec, i);
    }
    report("up");
    for (size_t i = 0; i < spec->node_count; i++) {
        if (send(spec->nodes[i].line, "g", 1, MSG_NOSIGNAL) != 1) give_up(spec, i);
        close(spec->nodes[i].line);
        spec->nodes[i].line = -1;
    }
}

static void forward(const struct spec *spec, const char *whom, int signal)
{
    long only = strcmp(whom, "all") ? strtol(whom, NULL, 10) : -1;
    for (size_t i = 0; i < spec->node_count; i++)
        if ((only < 0 || (size_t)only == i) && spec->nodes[i].init > 0) {
            if (signal == SIGKILL)
                kill_node(spec, i);
            else
                kill(spec->nodes[i].init, signal);
        }
}

/* Reads one order; false when the launcher is gone. */
static bool obey(const struct spec *spec, int channel_fd)
{
    char text[128], whom[32];
    int signal;
    ssize_t length = recv(channel_fd, text, sizeof text - 1, 0);
    if (length < 0) return errno == EINTR;
    if (length == 0) return false;
    text[length] = '\0';
    if (sscanf(text, "signal %31s %d", whom, &signal) == 2 && signal > 0 && signal < NSIG)
        forward(spec, whom, signal);
    else if (sscanf(text, "kill %31s", whom) == 1)
        forward(spec, whom, SIGKILL);
    return true;
}

/* Reaps dead children; with `options` 0 it waits for one first. Returns how many nodes are alive.
 */
static size_t reap(struct spec *spec, int options)
{
    size_t alive = 0;
    for (pid_t pid; (pid = waitpid(-1, NULL, options)) > 0; options = WNOHANG)
        for (size_t i = 0; i < spec->node_count; i++)
            if (spec->nodes[i].init == pid) {
                spec->nodes[i].init = 0;
                report("gone %zu", i);
            }
    for (size_t i = 0; i < spec->node_count; i++) alive += spec->nodes[i].init > 0;
    return alive;
}

int supervise(struct spec *spec, int channel_fd)
{
    sigset_t signals;
    sigemptyset(&signals);
    for (const int *s = (const int[]){SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, 0}; *s;
         s++)
        sigaddset(&signals, *s);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    if (channel_fd < 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    build(spec);
    int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    if (signal_fd < 0) die_with_errno("a signalfd");
    struct pollfd watched[2] = {{.fd = signal_fd, .events = POLLIN},
                                {.fd = channel_fd, .events = POLLIN}};
    while (reap(spec, WNOHANG)) {
        if (poll(watched, channel_fd < 0 ? 1 : 2, -1) < 0 && errno != EINTR) die_with_errno("poll");
        struct signalfd_siginfo info;
        if (watched[0].revents && read(signal_fd, &info, sizeof info) == sizeof info &&
            info.ssi_signo != SIGCHLD)
            forward(spec, "all", (int)info.ssi_signo);
        if (channel_fd >= 0 && watched[1].revents && !obey(spec, channel_fd)) {
            kill_all(spec);
            while (reap(spec, 0));
            break;
        }
    }
    if (!spec->isolate) kill_descendants();
    return 0;
}
