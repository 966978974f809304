/* clang-format off */
/* spec.c - reads what to build and run, as lines of text.
 *
 * Why it exists: the description includes the environment, so it is too large and too secret for a
 * command line. A person can type the format, so the helper is usable alone. There is one record
 * per line, "KEY VALUE". In a value, "\n" stands for a line feed and "\\" for a backslash; nothing
 * else is special. Empty lines and lines starting with '#' are skipped.
 *
 *     phantora-sandbox 1         first line: format version
 *     isolation namespaces|none  default namespaces
 *     steps yes                  send a "step NAME" message for each step done
 *     hosts FILE                 show FILE as /etc/hosts in each node
 *     fake-gpus N                show /dev/nvidia0..N-1 and /dev/nvidiactl unless the machine has a
 *                                GPU
 *     cwd DIR                    where the command starts
 *     program FILE               the executable; the arguments follow, argv[0] included
 *     arg TEXT
 *     env NAME=VALUE             the whole environment of the command
 *     node NAME ADDRESS/PREFIX   one more node; the next env lines are its own and take precedence
 */
/* clang-format on */
#include "sandbox.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strings_add(struct strings *list, char *item)
{
    char **grown = realloc(list->items, (list->count + 2) * sizeof *grown);
    if (!grown) die_with_errno("memory for the cluster's description");
    list->items = grown;
    grown[list->count++] = item;
    grown[list->count] = NULL;
}

static char *unescape(const char *text)
{
    char *out = must_alloc(strlen(text) + 1, 1), *to = out;
    for (; *text; text++) {
        if (*text == '\\' && text[1] == 'n') {
            *to++ = '\n';
            text++;
        } else if (*text == '\\' && text[1] == '\\') {
            *to++ = '\\';
            text++;
        } else {
            *to++ = *text;
        }
    }
    return out;
}

static int number(const char *text, long low, long high, size_t line)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
        die("spec line %zu: '%s' is not a number from %ld to %ld; fix the spec", line, text, low,
            high);
    return (int)value;
}

static void add_node(struct spec *spec, char *value, size_t line)
{
    char *space = strrchr(value, ' '), *slash = strrchr(value, '/');
    if (!space || !slash || slash < space || space == value)
        die("spec line %zu: node wants NAME ADDRESS/PREFIX; fix the spec", line);
    struct node *grown = realloc(spec->nodes, (spec->node_count + 1) * sizeof *grown);
    if (!grown) die_with_errno("memory for the cluster's description");
    *space = *slash = '\0';
    spec->nodes = grown;
    spec->nodes[spec->node_count++] = (struct node){
        .name = value, .address = space + 1, .prefix = number(slash + 1, 1, 32, line), .line = -1};
}

static void add_record(struct spec *spec, const char *key, char *value, size_t line)
{
    if (!strcmp(key, "isolation")) {
        spec->isolate = !strcmp(value, "namespaces");
        if (!spec->isolate && strcmp(value, "none"))
            die("spec line %zu: isolation is 'namespaces' or 'none', not '%s'; fix the spec", line,
                value);
    } else if (!strcmp(key, "steps")) {
        spec->steps = !strcmp(value, "yes");
    } else if (!strcmp(key, "hosts")) {
        spec->hosts = value;
    } else if (!strcmp(key, "fake-gpus")) {
        spec->fake_gpus = number(value, 0, 64, line);
    } else if (!strcmp(key, "cwd")) {
        spec->cwd = value;
    } else if (!strcmp(key, "program")) {
        spec->program = value;
    } else if (!strcmp(key, "arg")) {
        strings_add(&spec->argv, value);
    } else if (!strcmp(key, "env")) {
        strings_add(spec->node_count ? &spec->nodes[spec->node_count - 1].env : &spec->env, value);
    } else if (!strcmp(key, "node")) {
        add_node(spec, value, line);
    } else {
        die("spec line %zu: unknown key '%s'; fix the spec", line, key);
    }
}

void spec_read(const char *path, struct spec *spec)
{
    FILE *file = strcmp(path, "-") ? fopen(path, "re") : stdin;
    if (!file) die_with_errno("reading the spec %s", path);
    *spec = (struct spec){.isolate = true};
    char *text = NULL;
    size_t capacity = 0, line = 0;
    ssize_t length;
    while ((length = getline(&text, &capacity, file)) >= 0) {
        line++;
        if (length && text[length - 1] == '\n') text[--length] = '\0';
        if (line == 1) {
            if (strcmp(text, "phantora-sandbox 1"))
                die("spec line 1: expected 'phantora-sandbox 1'; the launcher and this helper "
                    "differ in version: make build");
            continue;
        }
        if (!length || text[0] == '#') continue;
        char *space = strchr(text, ' ');
        if (!space) die("spec line %zu: '%s' has no value; fix the spec", line, text);
        *space = '\0';
        add_record(spec, text, unescape(space + 1), line);
    }
    if (ferror(file)) die_with_errno("reading the spec %s", path);
    free(text);
    if (file != stdin) fclose(file);
    if (!spec->node_count || !spec->program || !spec->cwd || !spec->argv.count)
        die("the spec lacks one of node, program, cwd, arg; fix the spec");
    /* a Linux bridge has 1024 ports (BR_MAX_PORTS, net/bridge/br_private.h) */
    if (spec->node_count > 1000)
        die("%zu nodes do not fit one bridge; simulate at most 1000 nodes", spec->node_count);
}
