/* cures.c - maps an errno of the set-up to what the user can do about it on this machine.
 *
 * Why it exists: "Operation not permitted" from unshare or mount has four usual causes: AppArmor's
 * restriction, a sysctl, a seccomp filter, an exhausted limit. The kernel tells them apart only
 * through files that a user does not know to read. */
#include "sandbox.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The integer in a one-line file, or `absent` when there is no such file. */
static long read_number(const char *path, long absent)
{
    FILE *file = fopen(path, "re");
    long value = absent;
    if (!file) return absent;
    if (fscanf(file, "%ld", &value) != 1) value = absent;
    fclose(file);
    return value;
}

static long status_field(const char *name, long absent)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long value = absent;
    size_t length = strlen(name);
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && line[length] == ':')
            value = strtol(line + length + 1, NULL, 10);
    if (file) fclose(file);
    return value;
}

static const char *cure_for_refusal(void)
{
    if (read_number("/proc/sys/user/max_user_namespaces", 1) == 0)
        return "user namespaces are switched off: sudo sysctl -w user.max_user_namespaces=15000";
    if (read_number("/proc/sys/kernel/unprivileged_userns_clone", 1) == 0 && geteuid() != 0)
        return "this kernel keeps user namespaces for root: sudo sysctl -w "
               "kernel.unprivileged_userns_clone=1";
    if (read_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0) == 1)
        return "AppArmor restricts user namespaces: sudo sysctl -w "
               "kernel.apparmor_restrict_unprivileged_userns=0";
    if (status_field("Seccomp", 0) == 2)
        return "a seccomp filter refuses it, as in a container: start the container with "
               "--security-opt seccomp=unconfined "
               "(Docker; also --security-opt apparmor=unconfined --security-opt "
               "systempaths=unconfined), or run phantora-ns with "
               "--isolation none";
    return "a security policy of this machine refuses it (SELinux or the like): ask its "
           "administrator, or run phantora-ns with "
           "--isolation none";
}

const char *cure_for(int error)
{
    switch (error) {
    case EPERM:
    case EACCES: return cure_for_refusal();
    case ENOSPC:
    case EUSERS:
        if (read_number("/proc/sys/user/max_user_namespaces", 1) == 0) return cure_for_refusal();
        return "a limit on namespaces or mounts is reached: raise user.max_user_namespaces, "
               "user.max_net_namespaces and "
               "fs.mount-max with sudo sysctl -w, or simulate fewer nodes";
    case EINVAL:
    case ENOSYS:
        return "this kernel lacks it: Linux 5.4 or later is needed, built with CONFIG_USER_NS and "
               "CONFIG_NET_NS; else run "
               "phantora-ns with --isolation none";
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
        return "the kernel module is missing: sudo modprobe veth bridge; else run phantora-ns with "
               "--isolation none";
    case EAGAIN: return "a limit on processes is reached: raise ulimit -u, or simulate fewer nodes";
    case EMFILE:
    case ENFILE:
        return "a limit on open files is reached: raise ulimit -n, or simulate fewer nodes";
    case ENOMEM: return "memory is short: simulate fewer nodes, or free some";
    case ENOENT: return "create it, or run phantora-ns with --isolation none";
    default: return "run phantora-ns doctor for each step of the set-up";
    }
}
