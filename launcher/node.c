/* node.c - process 1 of a node: finishes the node from the inside, starts the command, reaps
 * children, forwards signals.
 *
 * Why it exists: only a process inside a namespace can set the host name, mount, and bring links up
 * there. The kernel kills all of a PID namespace when its process 1 ends, so nothing of a node
 * survives. Without namespaces this process is a subreaper instead, and kills what the command
 * left.
 *
 * Rule: it reports on the channel how the command ended, and exits 0. So any other exit status is a
 * failure of the sandbox. */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The spec's environment. The node's own entries replace those of the same name. */
static char **merge_environment(const struct strings *common, const struct strings *own)
{
    struct strings merged = {0};
    for (size_t i = 0; i < own->count; i++) strings_add(&merged, own->items[i]);
    for (size_t i = 0; i < common->count; i++) {
        size_t length = strcspn(common->items[i], "=") + 1;
        bool replaced = false;
        for (size_t j = 0; j < own->count && !replaced; j++)
            replaced = !strncmp(common->items[i], own->items[j], length);
        if (!replaced) strings_add(&merged, common->items[i]);
    }
    if (!merged.count) merged.items = must_alloc(1, sizeof *merged.items);
    return merged.items;
}

/* Runs the command in its own session, without a controlling terminal. So Ctrl-C reaches only the
 * launcher, which forwards it once. */
static _Noreturn void become_command(const struct spec *spec, size_t index)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    if (index) { /* one terminal cannot feed several nodes */
        int null = open("/dev/null", O_RDONLY);
        if (null < 0 || dup2(null, 0) < 0) die_with_errno("opening /dev/null");
        if (null) close(null);
    }
    if (chdir(spec->cwd)) {
        report("noexec %zu cannot enter %s: %s", index, spec->cwd, strerror(errno));
        _exit(126);
    }
    execve(spec->program, spec->argv.items, merge_environment(&spec->env, &spec->nodes[index].env));
    report("noexec %zu cannot run %s: %s", index, spec->program, strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

static void await(int line, char expected)
{
    char got;
    ssize_t count;
    do count = read(line, &got, 1);
    while (count < 0 && errno == EINTR);
    if (count != 1 || got != expected)
        _exit(EXIT_SETUP); /* the sandbox has died or given up, and reports the reason itself */
}

static void finish_node(const struct spec *spec, const struct node *node)
{
    if (sethostname(node->name, strlen(node->name)))
        die_with_errno("naming the host %s", node->name);
    step("host name");
    link_up("lo");
    link_up("eth0");
    address_add("eth0", node->address, node->prefix);
    step("addresses");
    mounts_make(spec);
}

/* Waits for children and signals; returns the command's wait status. Only signals from the sandbox
 * are obeyed, because a job that signals its parent's parent must not end the node. */
static int attend(pid_t command, pid_t sandbox, const sigset_t *signals)
{
    for (;;) {
        siginfo_t info;
        if (sigwaitinfo(signals, &info) < 0) continue;
        if (info.si_signo != SIGCHLD) {
            if (info.si_pid != sandbox) continue;
            if (info.si_signo != SIGQUIT)
                kill(-command, info.si_signo);
            else { /* isolation none: the sandbox orders the end, or has died */
                kill_descendants();
                _exit(0);
            }
            continue;
        }
        int status, found = 0, result = 0;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
            if (pid == command && (WIFEXITED(status) || WIFSIGNALED(status)))
                found = 1, result = status;
        if (found) return result;
    }
}

void node_init(const struct spec *spec, size_t index, int line)
{
    const struct node *node = &spec->nodes[index];
    pid_t sandbox = getppid(); /* 0 in a PID namespace, like the sender of its signals */
    sigset_t signals;
    report_as_node((int)index);
    prctl(PR_SET_PDEATHSIG, spec->isolate ? SIGKILL : SIGQUIT);
    if (!spec->isolate && prctl(PR_SET_CHILD_SUBREAPER, 1))
        die_with_errno("becoming the subreaper of a node");
    sigfillset(&signals);
    sigprocmask(SIG_SETMASK, &signals, NULL);
    await(line, 'w');
    if (spec->isolate) finish_node(spec, node);
    if (write(line, "r", 1) != 1) _exit(EXIT_SETUP);
    await(line, 'g');
    close(line);
    pid_t command = fork();
    if (command < 0) die_with_errno("starting the command on %s", node->name);
    if (command == 0) become_command(spec, index);
    int status = attend(command, sandbox, &signals);
    if (WIFEXITED(status))
        report("exit %zu %d", index, WEXITSTATUS(status));
    else
        report("signal %zu %d", index, WTERMSIG(status));
    if (!spec->isolate) kill_descendants();
    _exit(0);
}
