/* report.c - all messages of phantora-sandbox.
 *
 * Why it exists: the launcher must tell the sandbox's failures from the job's. So no message of the
 * sandbox may go to the job's stdout or stderr. Messages are datagrams on a SOCK_SEQPACKET channel,
 * so several processes may share it. Without a channel, when a person tries things by hand, they
 * are lines on stderr. */
#include "sandbox.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int channel = -1;
static int speaking_node = -1;
static bool steps_wanted;

void report_to(int channel_fd) { channel = channel_fd; }
void report_as_node(int node) { speaking_node = node; }
void report_steps(bool wanted) { steps_wanted = wanted; }

static void send_text(const char *text)
{
    if (channel < 0)
        fprintf(stderr, "phantora-sandbox: %s\n", text);
    else /* a launcher that has died needs no message */
        (void)!send(channel, text, strlen(text), MSG_NOSIGNAL);
}

void report(const char *format, ...)
{
    char text[MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    send_text(text);
}

void step(const char *name)
{
    if (steps_wanted && speaking_node <= 0) report("step %s", name);
}

static _Noreturn void fail(const char *text)
{
    if (speaking_node < 0)
        report("failed - %s", text);
    else
        report("failed %d %s", speaking_node, text);
    _exit(EXIT_SETUP);
}

void die(const char *format, ...)
{
    char text[MESSAGE_MAX / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail(text);
}

void die_with_errno(const char *what, ...)
{
    int error = errno;
    char said[MESSAGE_MAX / 4];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(said, sizeof said, what, arguments);
    va_end(arguments);
    die("%s: %s; %s", said, strerror(error), cure_for(error));
}

void *must_alloc(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory) die_with_errno("memory for the cluster's description");
    return memory;
}

char *must_printf(const char *format, ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) die_with_errno("memory for the cluster's description");
    return text;
}
