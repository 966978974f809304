/* base/log.c - diagnostics: each is one line on stderr, written once. See base/log.h. */
#include "base/log.h"
#include "base/protocol.gen.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REMEMBERED = 512 };
static const char *seen[REMEMBERED];
static int seen_count;
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;
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

void ph_warn(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!first_time(text)) return;
    line("warning: ", text);
    report(PH_DIAGNOSTIC_WARNING, text);
}

void ph_die(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    line("", text);
    _exit(70);
}
