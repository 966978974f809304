/* mounts.c - what a node sees differently from its host: /sys, /proc, /dev/shm, /etc/hosts and the
 * GPUs' device files.
 *
 * Why it exists: a node keeps the machine's whole file system, like a cluster with a shared home.
 * Only what would expose the other nodes or the host is replaced. There is no pivot_root, so all
 * paths stay the same, the run directory included.
 *
 * Rule: every mount is in the node's own mount namespace, so it disappears with the node. A mount
 * that must stay visible after another covers it is taken by open_tree(2) first and put back by
 * move_mount(2). Both, and fsopen, need Linux 5.2. */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000 /* linux/fcntl.h */
#endif

/* A detached copy of the mount at `path`, as a file descriptor; -1 with errno. */
static int take(const char *path, bool recursive)
{
    unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (recursive ? AT_RECURSIVE : 0);
    return (int)syscall(SYS_open_tree, AT_FDCWD, path, flags);
}

static int put(int tree, const char *path)
{
    return (int)syscall(SYS_move_mount, tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
}

/* A fresh /sys shows this node's network interfaces. The kernel refuses it if something is mounted
 * over parts of the outer /sys. Then the outer /sys stays, which only tools that list interfaces by
 * file notice. */
static void mount_sys(void)
{
    int cgroup = take("/sys/fs/cgroup", true);
    if (mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)) {
        step("/sys (the machine's own: a fresh one is refused here)");
    } else {
        if (cgroup >= 0) put(cgroup, "/sys/fs/cgroup");
        step("/sys");
    }
    if (cgroup >= 0) close(cgroup);
}

/* The same for /proc. With the outer /proc, /proc/self is right, but /proc/<getpid()> is another
 * process. */
static void mount_proc(void)
{
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
        step("/proc (the machine's own, with its process numbers: a fresh one is refused here)");
    else
        step("/proc");
}

static void make_file(const char *path, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, mode);
    if (fd < 0) die_with_errno("creating %s", path);
    close(fd);
}

/* Gives the node its own terminals. In the machine's devpts, the mode of ptmx may prevent a node
 * from opening one. */
static void mount_pts(int outer)
{
    if (mkdir("/dev/pts", 0755)) die_with_errno("creating /dev/pts");
    if (mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
              "newinstance,ptmxmode=0666,mode=0620") &&
        outer >= 0)
        put(outer, "/dev/pts");
    if (outer >= 0) close(outer);
}

/* Shows /dev/nvidia*. mknod is refused in a user namespace. So a private /dev gets the machine's
 * usual device files by bind mounts, and /dev/null under the GPUs' names. A machine with a real GPU
 * keeps its /dev, since a real driver needs its own device files. */
static void mount_dev(int gpus)
{
    static const char *const nodes[] = {"/dev/null",    "/dev/zero", "/dev/full", "/dev/random",
                                        "/dev/urandom", "/dev/tty",  "/dev/fuse", "/dev/kvm"};
    static const char *const folders[] = {"/dev/mqueue", "/dev/hugepages", "/dev/infiniband",
                                          "/dev/dri"};
    static const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                           {"fd/0", "/dev/stdin"},
                                           {"fd/1", "/dev/stdout"},
                                           {"fd/2", "/dev/stderr"},
                                           {"pts/ptmx", "/dev/ptmx"}};
    enum { NODES = sizeof nodes / sizeof *nodes, FOLDERS = sizeof folders / sizeof *folders };
    int node_trees[NODES], folder_trees[FOLDERS];
    if (!gpus || !access("/dev/nvidiactl", F_OK)) return;
    for (int i = 0; i < NODES; i++) node_trees[i] = take(nodes[i], false);
    for (int i = 0; i < FOLDERS; i++) folder_trees[i] = take(folders[i], true);
    int terminals = take("/dev/pts", true);
    if (node_trees[0] < 0) { /* a /dev without /dev/null would be worse than one without GPUs */
        step("/dev (the machine's own, without /dev/nvidia*: its nodes cannot be bound here)");
        return;
    }
    if (mount("dev", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755"))
        die_with_errno("mounting a private /dev");
    for (int i = 0; i < NODES; i++) {
        if (node_trees[i] < 0) continue;
        make_file(nodes[i], 0666);
        if (put(node_trees[i], nodes[i]))
            die_with_errno("showing %s in the private /dev", nodes[i]);
        close(node_trees[i]);
    }
    for (int i = 0; i < FOLDERS; i++) {
        if (folder_trees[i] < 0) continue;
        if (mkdir(folders[i], 0755) || put(folder_trees[i], folders[i]))
            die_with_errno("showing %s in the private /dev", folders[i]);
        close(folder_trees[i]);
    }
    mount_pts(terminals);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        (void)!symlink(links[i][0], links[i][1]);
    if (mkdir("/dev/shm", 01777)) die_with_errno("creating /dev/shm");
    for (int i = -2; i < gpus; i++) {
        char *path = i >= 0 ? must_printf("/dev/nvidia%d", i)
                            : must_printf("/dev/nvidia%s", i == -1 ? "-uvm" : "ctl");
        make_file(path, 0666);
        if (mount("/dev/null", path, NULL, MS_BIND, NULL)) die_with_errno("showing %s", path);
        free(path);
    }
    step("device files /dev/nvidia*");
}

void mounts_make(const struct spec *spec)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        die_with_errno("making the node's mounts private");
    mount_sys();
    mount_proc();
    mount_dev(spec->fake_gpus);
    if (mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"))
        die_with_errno("mounting a private /dev/shm");
    step("/dev/shm");
    if (spec->hosts) {
        if (mount(spec->hosts, "/etc/hosts", NULL, MS_BIND, NULL))
            die_with_errno("showing the cluster's names as /etc/hosts");
        step("/etc/hosts");
    }
}
