/* warm/maps.c - what the kernel says of this process's memory. See warm/image.h. */
#include "warm/image.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t read_whole(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    for (ssize_t got; fd >= 0 && length < size - 1; length += (size_t)got)
        if ((got = read(fd, buffer + length, size - 1 - length)) <= 0) break;
    if (fd >= 0) close(fd);
    buffer[length] = 0;
    return length;
}

/* "start-end rwxp offset major:minor inode      path" */
static void read_line(char *line, struct ph_mapping *mapping)
{
    char *at = line;
    mapping->range.start = strtoull(at, &at, 16);
    mapping->range.end = strtoull(at + 1, &at, 16);
    mapping->protection = (at[1] == 'r' ? PROT_READ : 0) | (at[2] == 'w' ? PROT_WRITE : 0) |
                          (at[3] == 'x' ? PROT_EXEC : 0);
    mapping->shared = at[4] == 's';
    mapping->offset = strtoull(at + 5, &at, 16);
    strtoull(at, &at, 16);
    strtoull(at + 1, &at, 16);
    mapping->inode = strtoull(at, &at, 10);
    mapping->path = at + strspn(at, " ");
}

int ph_read_maps(struct ph_mapping *mappings, int most, char *buffer, size_t size)
{
    size_t length = read_whole("/proc/self/maps", buffer, size);
    int count = 0;
    if (!length || length == size - 1) return -1;
    for (char *line = buffer, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        if (count == most) return -1;
        read_line(line, &mappings[count++]);
    }
    return count;
}

bool ph_read_flags(struct ph_mapping *mappings, int count, char *buffer, size_t size)
{
    size_t length = read_whole("/proc/self/smaps", buffer, size);
    char *line = buffer;
    int known = 0;
    for (; length < size - 1 && known < count && (line = strstr(line, "\nVmFlags:")); known++) {
        struct ph_mapping *mapping = &mappings[known];
        char *end = strchr(++line, '\n');
        if (end) *end = 0;
        mapping->wiped = strstr(line, " wf") != NULL;
        mapping->droppable = strstr(line, " dp") != NULL;
        /* huge pages of their own, userfaultfd, device memory */
        mapping->strange = strstr(line, " ht") || strstr(line, " um") || strstr(line, " uw") ||
                           strstr(line, " pf") || strstr(line, " io");
        if (!end) break;
        *end = '\n';
        line = end - 1;
    }
    return known == count;
}

bool ph_is_kernel_page(const struct ph_mapping *mapping)
{
    return !strncmp(mapping->path, "[vvar", 5) || !strcmp(mapping->path, "[vdso]");
}

uint64_t ph_stat_field(int field)
{
    char text[2048];
    read_whole("/proc/self/stat", text, sizeof text);
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    for (int i = 2; at && i < field; i++)
        if ((at = strchr(at, ' '))) at++;
    return at ? strtoull(at, NULL, 10) : 0;
}

uint64_t ph_rseq(uint64_t *area)
{
    /* since glibc 2.35; it registers 32 bytes, or more where the kernel uses more */
    const ptrdiff_t *offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
    const unsigned *size = dlsym(RTLD_DEFAULT, "__rseq_size");
    if (!offset || !size || !*size) return 0;
    *area = (uint64_t)((char *)__builtin_thread_pointer() + *offset);
    return *size > 32 ? *size : 32;
}
