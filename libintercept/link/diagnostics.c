/* link/diagnostics.c - what the user must know: refused calls, warnings, our own failures.
 *
 * Why it exists: nothing may be silently wrong. Each diagnostic is one line on stderr, once, and a
 * DIAGNOSTIC to the hub for the report. */
#include "base/core.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOTES = 512 };
static const char *seen[NOTES];
static int seen_count;
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

static bool first_time(const char *text)
{
    bool fresh = true;
    pthread_mutex_lock(&seen_lock);
    for (int i = 0; i < seen_count && fresh; i++) fresh = strcmp(seen[i], text) != 0;
    if (fresh && seen_count < NOTES) seen[seen_count++] = strdup(text);
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

static void note(const char *what, const char *text)
{
    if (!ph_hub_connected()) return;
    struct ph_pack body = {0};
    ph_pack_uint(&body, atomic_load_explicit(&ph_stats()->clock_ns, memory_order_relaxed));
    ph_pack_str(&body, what);
    ph_pack_str(&body, text);
    ph_send(PH_MESSAGE_DIAGNOSTIC, &body, 3);
    ph_pack_free(&body);
}

void ph_unsupported(const char *function)
{
    if (!first_time(function)) return;
    char text[256];
    snprintf(text, sizeof text,
             "%s is not supported: the job gets the API's \"not supported\" error", function);
    line("", text);
    note(PH_DIAGNOSTIC_UNSUPPORTED, function);
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
    note(PH_DIAGNOSTIC_WARNING, text);
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
