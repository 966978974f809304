/* sandbox.h - what the files of phantora-sandbox share.
 *
 * Why it exists: one policy (supervise) builds a process tree from small mechanisms (report, spec,
 * userns, net, mounts, node, tree).
 *
 * Rule: a mechanism never decides what a failure means. It reports what failed and what cures it,
 * and exits. */
#ifndef PHANTORA_SANDBOX_H
#define PHANTORA_SANDBOX_H
#ifndef _GNU_SOURCE /* every file includes this one first */
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PRINTF(f, a) __attribute__((format(printf, f, a)))

enum {
    EXIT_SETUP = 125, /* the cluster could not be built; nothing of the job ran */
    EXIT_USAGE = 2,
    MESSAGE_MAX = 2048 /* one message on the channel */
};

/* ---- report.c: all messages, to the launcher's channel or, without one, to stderr ---- */
void report_to(int channel_fd); /* -1: stderr */
/* from now on, failure messages carry this node's index; -1: the sandbox itself */
void report_as_node(int node);
void report_steps(bool wanted); /* whether step() reports */
void report(const char *format, ...) PRINTF(1, 2);
void step(const char *name); /* reports that this step of the set-up is done */
_Noreturn void die(const char *format, ...) PRINTF(1, 2);
/* "what: strerror; cure" and exit EXIT_SETUP */
_Noreturn void die_with_errno(const char *what, ...) PRINTF(1, 2);
void *must_alloc(size_t count, size_t size);
char *must_printf(const char *format, ...) PRINTF(1, 2);

/* ---- cures.c ---- */
/* what the user can do about errno `error` on this machine; never NULL */
const char *cure_for(int error);

/* ---- spec.c: see its top for the format ---- */
struct strings {
    char **items; /* NULL-terminated */
    size_t count;
};
void strings_add(struct strings *list, char *item);

struct node {
    char *name;
    char *address; /* "10.77.0.1" */
    int prefix;
    struct strings env;
    /* kept by supervise.c */
    pid_t init;
    int line; /* the sandbox's end of the socket to the node's init, -1 when closed */
};

struct spec {
    bool isolate;
    bool steps;
    char *hosts; /* file to show as /etc/hosts, or NULL */
    char *cwd, *program;
    int fake_gpus;
    struct strings env, argv;
    struct node *nodes;
    size_t node_count;
};
void spec_read(const char *path, struct spec *spec);

/* ---- userns.c ---- */
void userns_enter(void);     /* same ids inside as outside */
void namespaces_probe(void); /* tries each kind alone, to name the one that is refused */

/* ---- net.c: raw rtnetlink in the calling process's network namespace ---- */
/* returns its interface index */
int bridge_make(const char *name);
/* `name`: up, in the bridge; `peer_name`: in the network namespace of process `peer`. False with
 * errno set when that is refused; ESRCH: `peer` has ended. */
bool veth_make(const char *name, int bridge, const char *peer_name, pid_t peer);
void link_up(const char *interface);
void address_add(const char *interface, const char *address, int prefix);

/* ---- mounts.c: all inside the calling process's own mount namespace ---- */
void mounts_make(const struct spec *spec);

/* ---- tree.c ---- */
/* sends SIGKILL to all descendants; false if there were none */
bool kill_descendants(void);
/* Sends SIGKILL to the processes of the run in this folder, until none is left. */
void kill_run(const char *folder);
/* deletes the folder; waits for what still writes into it */
void remove_tree(const char *path);

/* ---- node.c: process 1 of a node ---- */
_Noreturn void node_init(const struct spec *spec, size_t index, int line);

/* ---- supervise.c ---- */
int supervise(struct spec *spec, int channel_fd);

#endif
