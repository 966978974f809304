/* warm/command.c - which image serves a command. See warm/image.h.
 *
 * Why it exists: an image is as good as a start of one's own only if the start would have read the
 * same: program, options, environment, limits. The key holds all of that. What may differ is named
 * here, one by one; everything else may not. */
#define _GNU_SOURCE
#include "warm/image.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Read after torch has been imported, if at all. A name that ends in * stands for all that begin
 * so. tests/warm compares this list with what an import of torch reads. */
static const char *const MAY_DIFFER[] = {
    /* what torchrun and other launchers give each rank */
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*", "PET_*",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NODE_RANK", "NNODES", "GPUS_PER_NODE", "CROSS_RANK",
    "CROSS_SIZE", "LOCAL_SIZE", "CUDA_VISIBLE_DEVICES",
    /* ours */
    "PHANTORA_NODE", "PHANTORA_GPU_FAULTS", "PHANTORA_INTERPOSED", "PHANTORA_WARM_*",
    /* the shell's */
    "PWD", "OLDPWD", "SHLVL", "_", NULL};

/* Options of Python that an image may have been made with. Not: those that hide our start-up hook
 * (-E, -I, -S), that end in an interactive Python (-i), or that change how the script is read. */
static const char *const PLAIN[] = {"-u", "-B", "-O", "-OO", "-s", "-q", "-b", "-bb", "-P", NULL};

static bool among(const char *const *list, const char *word)
{
    for (; *list; list++)
        if (!strcmp(*list, word)) return true;
    return false;
}

int ph_python_main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (word[0] != '-') return word[0] ? i : 0;
        if (!strcmp(word, "-m") || !strcmp(word, "-c")) return i + 1 < argc ? i : 0;
        if (!strcmp(word, "-W") || !strcmp(word, "-X"))
            i++;
        else if (!among(PLAIN, word) &&
                 ((strncmp(word, "-W", 2) && strncmp(word, "-X", 2)) || !word[2]))
            return 0;
    }
    return 0;
}

/* -u decides only about the standard streams, which every process sets up itself. */
bool ph_python_option_is_own(const char *word) { return !strcmp(word, "-u"); }

bool ph_variable_may_differ(const char *entry)
{
    size_t length = strcspn(entry, "=");
    for (const char *const *name = MAY_DIFFER; *name; name++) {
        size_t own = strlen(*name);
        bool open = (*name)[own - 1] == '*' && own > 1;
        if (open ? length >= own - 1 && !strncmp(*name, entry, own - 1)
                 : length == own && !strncmp(*name, entry, own))
            return true;
    }
    return false;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_environment(FILE *out, char **environment)
{
    size_t count = 0, kept = 0;
    while (environment[count]) count++;
    char **entries = calloc(count + 1, sizeof *entries);
    for (size_t i = 0; entries && i < count; i++)
        if (!ph_variable_may_differ(environment[i])) entries[kept++] = environment[i];
    if (entries) qsort(entries, kept, sizeof *entries, by_text);
    for (size_t i = 0; i < kept; i++) fprintf(out, "%s\n", entries[i]);
    free(entries);
}

/* A relative folder on PYTHONPATH means another one in another working directory. */
static bool has_relative_path(void)
{
    const char *path = getenv("PYTHONPATH");
    for (; path && *path; path += strcspn(path, ":"), path += *path == ':')
        if (*path != '/') return true;
    return false;
}

char *ph_image_key(int argc, char **argv, char **environment, const char **why)
{
    int main_at = ph_python_main(argc, argv);
    if (!main_at) {
        *why = "an option of Python";
        return NULL;
    }
    const char *preloads = getenv("LD_PRELOAD");
    if (preloads && strpbrk(preloads, ": ")) {
        *why = "another preloaded library";
        return NULL;
    }
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) || stack.rlim_cur == RLIM_INFINITY) {
        *why = "a stack without limit";
        return NULL;
    }
    char *key = NULL, program[4096] = "", folder[4096] = "";
    size_t length;
    cpu_set_t processors;
    CPU_ZERO(&processors);
    FILE *out = open_memstream(&key, &length);
    if (!out || readlink("/proc/self/exe", program, sizeof program - 1) < 0 ||
        sched_getaffinity(0, sizeof processors, &processors)) {
        *why = "its program cannot be told";
        if (out) fclose(out), free(key);
        return NULL;
    }
    fprintf(out, "%s\n", program);
    for (int i = 0; i < main_at; i++)
        if (i == 0 || !ph_python_option_is_own(argv[i])) fprintf(out, "%s\n", argv[i]);
    fprintf(out, "uid %u gid %u stack %llu processors ", geteuid(), getegid(),
            (unsigned long long)stack.rlim_cur);
    for (size_t i = 0; i < sizeof processors / 8; i++)
        if (((uint64_t *)&processors)[i])
            fprintf(out, "%zu:%llx ", i, (unsigned long long)((uint64_t *)&processors)[i]);
    if (has_relative_path() && getcwd(folder, sizeof folder)) fprintf(out, "in %s", folder);
    fputc('\n', out);
    add_environment(out, environment);
    fclose(out);
    return key;
}
