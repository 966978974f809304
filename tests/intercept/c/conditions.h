/* conditions.h - runs one small program in the conditions in which a preloaded library tends to
 * fail.
 *
 * Why it exists: a call must give the same answer in each condition: from main, from a constructor
 * (before main, when other libraries are not ready yet), in a forked child, and when found by dlsym
 * (as PyTorch finds the driver). A program defines run() and calls CUDA through CALL. The first
 * argument names the condition. */
#ifndef CONDITIONS_H
#define CONDITIONS_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int by_name;
#define CALL(function, ...)                                                                  \
    ((__typeof__(&function))(by_name ? dlsym(RTLD_DEFAULT, #function) : (void *)&function))( \
        __VA_ARGS__)

static void run(void);

__attribute__((constructor)) static void early(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "constructor") == 0) run();
}

int main(int argc, char **argv)
{
    const char *condition = argc > 1 ? argv[1] : "plain";
    if (strcmp(condition, "dlsym") == 0) by_name = 1;
    if (strcmp(condition, "constructor") == 0) return 0;
    if (strcmp(condition, "fork") == 0) {
        pid_t child = fork();
        if (child == 0) {
            run();
            fflush(stdout);
            _exit(0);
        }
        int status;
        return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    run();
    return 0;
}
#endif
