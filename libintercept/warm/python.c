/* warm/python.c - the command line that a started Python interpreter keeps.
 *
 * Why it exists: the interpreter of an image has read its options already, with a script that
 * stands for any. When Python's start is done it runs what its configuration names. So the
 * configuration gets the command of the process that took the image over, and CPython's own code
 * does the rest: __main__, sys.path[0], exit codes.
 *
 * Rule: no offset of a CPython release is written here. The places are found by their content, and
 * an interpreter in which they are not found makes no image. */
#define _GNU_SOURCE
#include "warm/image.h"
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <wchar.h>

enum { CONFIG_WORDS = 256 };

struct wide_list { /* PyWideStringList */
    ptrdiff_t length;
    wchar_t **items;
};

static struct {
    wchar_t **run_filename; /* run_command and run_module are the two words before it */
    struct wide_list *argv, *orig_argv, *process_argv;
    wchar_t *(*decode)(const char *, size_t *);
    void *(*allocate)(size_t);
    void (*release)(void *);
} python;

static bool can_read(const void *address, size_t length)
{
    char bytes[4096];
    struct iovec to = {bytes, length}, from = {(void *)address, length};
    return length <= sizeof bytes &&
           process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)length;
}

static bool is_text(const wchar_t *at, const wchar_t *text)
{
    size_t bytes = (wcslen(text) + 1) * sizeof *text;
    return (uintptr_t)at % sizeof *at == 0 && can_read(at, bytes) && !memcmp(at, text, bytes);
}

static bool is_list(const struct wide_list *list, ptrdiff_t length, const wchar_t *first)
{
    return list->length == length && (uintptr_t)list->items % 8 == 0 &&
           can_read(list->items, sizeof *list->items) && is_text(list->items[0], first);
}

struct search {
    wchar_t **items;
    ptrdiff_t length;
    const void *inside;
    struct wide_list *found;
};

/* Looks for the list in the writable data of the library that holds `inside`. */
static int look_for_list(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct search *search = argument;
    bool holds = false;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const char *start = (const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        holds |= info->dlpi_phdr[i].p_type == PT_LOAD && start <= (const char *)search->inside &&
                 (const char *)search->inside < start + info->dlpi_phdr[i].p_memsz;
    }
    for (int i = 0; holds && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_W)) continue;
        uintptr_t start = (info->dlpi_addr + part->p_vaddr + 7) & ~(uintptr_t)7;
        uintptr_t end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
        for (uintptr_t at = start; at + sizeof(struct wide_list) <= end; at += 8) {
            struct wide_list *list = (struct wide_list *)at;
            if (list->length == search->length && list->items == search->items)
                search->found = list;
        }
    }
    return holds;
}

bool ph_python_locate(int argc, char **argv)
{
    void *(*interpreter)(void) = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyInterpreterState_Get");
    void *(*config_of)(void *) =
        (void *(*)(void *))dlsym(RTLD_DEFAULT, "_PyInterpreterState_GetConfig");
    void *(*config_here)(void) = (void *(*)(void))dlsym(RTLD_DEFAULT, "_Py_GetConfig");
    void (*process_arguments)(int *, wchar_t ***) =
        (void (*)(int *, wchar_t ***))dlsym(RTLD_DEFAULT, "Py_GetArgcArgv");
    python.decode = (wchar_t * (*)(const char *, size_t *)) dlsym(RTLD_DEFAULT, "Py_DecodeLocale");
    python.allocate = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "PyMem_RawMalloc");
    python.release = (void (*)(void *))dlsym(RTLD_DEFAULT, "PyMem_RawFree");
    if (!(config_of && interpreter) && !config_here) return false;
    if (!process_arguments || !python.decode || !python.allocate || !python.release) return false;
    wchar_t *program = python.decode(argv[0], NULL), *script = python.decode(argv[argc - 1], NULL);
    uint64_t *config = config_of ? config_of(interpreter()) : config_here();
    if (!program || !script || !config) return false;
    for (int i = 0; i < CONFIG_WORDS && can_read(config + i, 16); i++) {
        struct wide_list *list = (struct wide_list *)(config + i);
        if (!python.run_filename && i > 2 && !config[i - 1] && !config[i - 2] &&
            is_text((wchar_t *)config[i], script))
            python.run_filename = (wchar_t **)(config + i);
        if (!python.argv && is_list(list, 1, script)) python.argv = list;
        if (!python.orig_argv && is_list(list, argc, program)) python.orig_argv = list;
    }
    struct search search = {.inside = (const void *)process_arguments};
    int count;
    process_arguments(&count, &search.items);
    search.length = count;
    dl_iterate_phdr(look_for_list, &search);
    python.process_argv = search.found;
    return python.run_filename && python.argv && python.orig_argv && python.process_argv;
}

/* CPython frees its configuration with its own allocator, which may check what it frees, and the
 * arguments of the process with the one below, which is malloc. */
typedef void *allocator(size_t size);

static wchar_t *decoded(const char *text, allocator *allocate)
{
    size_t length;
    wchar_t *wide = python.decode(text, &length), *own = NULL;
    if (wide) own = allocate((length + 1) * sizeof *own);
    if (!own) _exit(70);
    wmemcpy(own, wide, length + 1);
    python.release(wide);
    return own;
}

static void set_list(struct wide_list *list, allocator *allocate, const char *first, int rest,
                     char **words)
{
    wchar_t **items = allocate(((size_t)rest + 1) * sizeof *items);
    if (!items) _exit(70);
    int count = 0;
    if (first) items[count++] = decoded(first, allocate);
    for (int i = 0; i < rest; i++) items[count++] = decoded(words[i], allocate);
    *list = (struct wide_list){count, items};
}

static wchar_t *command_text(const char *text)
{
    wchar_t *command = decoded(text, malloc);
    size_t length = wcslen(command);
    wchar_t *ended = python.allocate((length + 2) * sizeof *ended);
    if (!ended) _exit(70);
    wmemcpy(ended, command, length);
    ended[length] = L'\n', ended[length + 1] = 0;
    free(command);
    return ended;
}

static wchar_t *absolute(const char *path)
{
    char folder[4096], whole[8192];
    if (path[0] == '/' || !getcwd(folder, sizeof folder)) return decoded(path, python.allocate);
    if (snprintf(whole, sizeof whole, "%s/%s", folder, path) >= (int)sizeof whole) _exit(70);
    return decoded(whole, python.allocate);
}

void ph_python_command(int argc, char **argv)
{
    int at = ph_python_main(argc, argv);
    bool command = !strcmp(argv[at], "-c"), module = !strcmp(argv[at], "-m");
    int rest = at + (command || module ? 2 : 1);
    set_list(python.orig_argv, python.allocate, NULL, argc, argv);
    set_list(python.process_argv, malloc, NULL, argc, argv);
    set_list(python.argv, python.allocate, argv[at], argc - rest, argv + rest);
    python.run_filename[0] = command || module ? NULL : absolute(argv[at]);
    python.run_filename[-1] = module ? decoded(argv[at + 1], python.allocate) : NULL;
    python.run_filename[-2] = command ? command_text(argv[at + 1]) : NULL;
}
