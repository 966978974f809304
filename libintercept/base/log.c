/* base/log.c - diagnostics: each is one line on stderr, written once. See base/log.h. */
#include "base/fork.h"
#include "base/log.h"
#include "base/environment.h"
#include "base/fnv1a.h"
#include "base/protocol.gen.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REMEMBERED = 512 };
static const char *seen[REMEMBERED];
static int seen_count;
static pthread_mutex_t PH_FREE_IN_CHILD seen_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(ph_diagnostic_reader *) reader;

void ph_log_to(ph_diagnostic_reader *fresh) { reader = fresh; }

static bool first_time(const char *text)
{
    bool fresh = true;
    pthread_mutex_lock(&seen_lock);
    for (int i = 0; i < seen_count && fresh; i++) fresh = strcmp(seen[i], text) != 0;
    if (fresh && seen_count < REMEMBERED) seen[seen_count++] = strdup(text);
    pthread_mutex_unlock(&seen_lock);
    return fresh;
}

static void line(const char *level, const char *text)
{
    char buffer[1200];
    int n = snprintf(buffer, sizeof buffer, "phantora-ns: %s%s\n", level, text);
    if (n > (int)sizeof buffer - 1) n = sizeof buffer - 1;
    if (write(2, buffer, (size_t)n) < 0) { /* a closed stderr must not hurt the job */
    }
}

static void report(const char *kind, const char *text)
{
    ph_diagnostic_reader *now = reader;
    if (now) now(kind, text);
}

void ph_unsupported(const char *function)
{
    if (!first_time(function)) return;
    char text[256];
    snprintf(text, sizeof text,
             "%s is not supported: the job gets the API's \"not supported\" error", function);
    line("", text);
    report(PH_DIAGNOSTIC_UNSUPPORTED, function);
}

/* A file in the run directory says that a process has written this text. */
static bool first_in_run(const char *text)
{
    const char *run_dir = ph_env("PHANTORA_RUN_DIR");
    char path[512];
    if (!run_dir || snprintf(path, sizeof path, "%s/said-%016llx", run_dir,
                             (unsigned long long)ph_fnv1a_text(PH_FNV1A, text)) >= (int)sizeof path)
        return true;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0 || errno != EEXIST;
}

static void warn(bool for_run, const char *format, va_list arguments)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    if (!first_time(text)) return;
    if (!for_run || first_in_run(text)) line("warning: ", text);
    report(PH_DIAGNOSTIC_WARNING, text);
}

void ph_warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    warn(false, format, arguments);
    va_end(arguments);
}

void ph_warn_for_run(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    warn(true, format, arguments);
    va_end(arguments);
}

void ph_die(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    line("", text);
    ph_end();
}

void ph_end(void) { _exit(70); }
