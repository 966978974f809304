/* clang-format off */
/* main.c - phantora-sandbox: the helper that owns a simulated cluster's namespaces.
 *
 * Why it exists: Python cannot enter a user namespace once its libraries have started threads. A
 * small program can, and a machine that restricts user namespaces can allow it by its path (an
 * AppArmor profile). Usage:
 *
 *     phantora-sandbox run SPEC [CHANNEL_FD]
 *         builds the cluster of SPEC ("-": stdin; format: spec.c) and runs its command
 *     phantora-sandbox guard PARENT_PID COMMAND...
 *         becomes COMMAND, and is killed when process PARENT_PID dies
 *     phantora-sandbox sweep FOLDER
 *         deletes FOLDER once standard input, a pipe of the launcher, is closed */
/* clang-format on */
#include "sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static int usage(void)
{
    fputs("usage: phantora-sandbox run SPEC [CHANNEL_FD]\n"
          "       phantora-sandbox guard PARENT_PID COMMAND [ARGUMENT...]\n"
          "       phantora-sandbox sweep FOLDER\n",
          stderr);
    return EXIT_USAGE;
}

static int guard(char **argv)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) die_with_errno("asking to die with the launcher");
    if (getppid() != atoi(argv[0])) /* the parent died before prctl */
        return EXIT_SETUP;
    execvp(argv[1], argv + 1);
    die_with_errno("running %s", argv[1]);
}

/* The launcher may be killed at any time, also while no cluster is up. */
static int sweep(const char *folder)
{
    char byte;
    for (const int *s = (const int[]){SIGINT, SIGTERM, SIGHUP, 0}; *s; s++) signal(*s, SIG_IGN);
    for (ssize_t got = 1; got > 0 || (got < 0 && errno == EINTR);) got = read(0, &byte, 1);
    kill_run(folder);
    remove_tree(folder);
    return 0;
}

/* Makes the job inherit only the three standard descriptors, whatever this process was given. */
static void keep_descriptors_from_the_job(void)
{
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) die_with_errno("reading /proc/self/fd");
    for (struct dirent *entry; (entry = readdir(folder));)
        if (atoi(entry->d_name) > 2) fcntl(atoi(entry->d_name), F_SETFD, FD_CLOEXEC);
    closedir(folder);
}

int main(int argc, char **argv)
{
    if (argc >= 4 && !strcmp(argv[1], "guard")) return guard(argv + 2);
    if (argc == 3 && !strcmp(argv[1], "sweep")) return sweep(argv[2]);
    if (argc < 3 || argc > 4 || strcmp(argv[1], "run")) return usage();
    int channel = argc == 4 ? atoi(argv[3]) : -1;
    if (channel >= 0 && fcntl(channel, F_GETFD) < 0) {
        fprintf(stderr, "phantora-sandbox: descriptor %d of the channel is not open\n", channel);
        return EXIT_USAGE;
    }
    struct spec spec;
    report_to(channel);
    keep_descriptors_from_the_job();
    spec_read(argv[2], &spec);
    report_steps(spec.steps);
    return supervise(&spec, channel);
}
