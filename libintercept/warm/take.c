/* warm/take.c - writes this process's memory to an image. See warm/image.h.
 *
 * Why it exists: it runs in a forked child with one thread, so that libraries have let go of their
 * threads and locks, as they do for every fork.
 *
 * Rule: what cannot be kept exactly is refused: a second thread, an open file, memory that is
 * shared with other processes. While the memory is written it must not change, so all that is
 * needed is allocated first. */
#define _GNU_SOURCE
#include "warm/image.h"
#include <asm/prctl.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MAPPINGS_MOST = 16384,
    TEXT_BYTES = 4 << 20,
    STRINGS_BYTES = 1 << 20,
    /* as many pages that were never written become a mapping of their own */
    GAP_PAGES = 64,
    FLAGS_AT_ONCE = 4096
};

struct scratch {
    struct ph_image image;
    struct ph_image_map maps[MAPPINGS_MOST];
    struct ph_mapping now[MAPPINGS_MOST];
    char text[TEXT_BYTES];
    char flags_text[TEXT_BYTES];
    char strings[STRINGS_BYTES];
    uint64_t flags[FLAGS_AT_ONCE];
    int now_count, fd, pagemap;
    uint64_t end; /* of the image */
    const char *key;
    char *why;
    size_t why_size;
};

static struct ph_arrival arrival;

const struct ph_arrival *ph_image_arrival(void) { return &arrival; }

static int refuse(struct scratch *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(struct scratch *s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->why, s->why_size, format, arguments);
    va_end(arguments);
    return -1;
}

/* Whether a page of a private mapping is the process's own (proc_pid_pagemap(5)): in memory and of
 * no file, or swapped out. */
static bool is_own(uint64_t flags)
{
    bool present = flags >> 63 & 1, swapped = flags >> 62 & 1, of_file = flags >> 61 & 1;
    return (present || swapped) && !of_file;
}

static struct ph_image_map *add(struct scratch *s, uint64_t start, uint64_t end,
                                enum ph_image_kind kind, uint32_t protection)
{
    struct ph_image_map *map = &s->maps[s->image.map_count++];
    *map = (struct ph_image_map){
        .start = start, .length = end - start, .kind = kind, .protection = protection};
    return map;
}

static int add_file(struct scratch *s, const struct ph_mapping *mapping, struct ph_range range,
                    enum ph_image_kind kind)
{
    struct stat status;
    struct ph_image_map *map = add(s, range.start, range.end, kind, mapping->protection);
    if (stat(mapping->path, &status) || status.st_ino != mapping->inode)
        return refuse(s, "%s is mapped and is no longer there", mapping->path);
    map->offset = mapping->offset + (range.start - mapping->range.start);
    map->device = status.st_dev;
    map->inode = status.st_ino;
    map->size = (uint64_t)status.st_size;
    map->modified_ns =
        (uint64_t)status.st_mtim.tv_sec * 1000000000 + (uint64_t)status.st_mtim.tv_nsec;
    const struct ph_image_map *before = map > s->maps ? map - 1 : NULL;
    if (before && (before->kind == PH_IMAGE_FILE || before->kind == PH_IMAGE_SHARED) &&
        !strcmp(s->strings + before->path, mapping->path)) {
        map->path = before->path;
        return 0;
    }
    size_t length = strlen(mapping->path) + 1;
    if (s->image.string_bytes + length > STRINGS_BYTES)
        return refuse(s, "too many files are mapped");
    memcpy(s->strings + s->image.string_bytes, mapping->path, length);
    map->path = s->image.string_bytes;
    s->image.string_bytes += length;
    return 0;
}

/* Counts the pages from `start` on, up to `end`, that are all own or all not own. -1: cannot be
 * read. */
static int64_t run_of_pages(struct scratch *s, uint64_t start, uint64_t end, bool *own)
{
    int64_t count = 0;
    for (uint64_t at = start; at < end; at += FLAGS_AT_ONCE * (uint64_t)PH_PAGE) {
        uint64_t pages = (end - at) / PH_PAGE;
        if (pages > FLAGS_AT_ONCE) pages = FLAGS_AT_ONCE;
        if (pread(s->pagemap, s->flags, pages * 8, (off_t)(at / PH_PAGE * 8)) !=
            (ssize_t)(pages * 8))
            return -1;
        for (uint64_t i = 0; i < pages; i++, count++) {
            bool is = is_own(s->flags[i]);
            if (!count) *own = is;
            if (is != *own) return count;
        }
    }
    return count;
}

/* A part of a private mapping. Long runs of pages that are not the process's own stay what they
 * were: not written yet, or the file's. */
static int add_private(struct scratch *s, const struct ph_mapping *mapping, bool file)
{
    const struct ph_range range = mapping->range;
    const uint32_t protection = mapping->protection;
    uint64_t from = range.start; /* of the pages to keep */
    for (uint64_t at = range.start, next; at < range.end; at = next) {
        bool own = false;
        int64_t pages = run_of_pages(s, at, range.end, &own);
        if (pages < 0) return refuse(s, "/proc/self/pagemap cannot be read");
        next = at + (uint64_t)pages * PH_PAGE;
        if (s->image.map_count > MAPPINGS_MOST - 4) return refuse(s, "there are too many mappings");
        if (own ? !(protection & PROT_READ) : 0)
            return refuse(s, "there is memory that cannot be read");
        if (own || (pages < GAP_PAGES && next - at < range.end - range.start)) continue;
        if (at > from) add(s, from, at, PH_IMAGE_PAGES, protection);
        from = next;
        if (!file)
            add(s, at, next, PH_IMAGE_ZERO, protection);
        else if (add_file(s, mapping, (struct ph_range){at, next}, PH_IMAGE_FILE))
            return -1;
    }
    if (from < range.end) add(s, from, range.end, PH_IMAGE_PAGES, protection);
    return 0;
}

static int add_stack(struct scratch *s, struct ph_range range)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return refuse(s, "the stack has no limit");
    uint64_t used = range.end - range.start;
    uint64_t length = (limit.rlim_cur + PH_PAGE - 1) & ~(uint64_t)(PH_PAGE - 1);
    /* One mapping, as the kernel's own stack is: libraries look for the stack's bounds there. */
    struct ph_image_map *map = add(s, range.end - (length > used ? length : used), range.end,
                                   PH_IMAGE_COPY, PROT_READ | PROT_WRITE);
    map->copied = used;
    return 0;
}

static int add_mapping(struct scratch *s, const struct ph_mapping *mapping)
{
    struct ph_range range = mapping->range;
    if (!strcmp(mapping->path, "[vsyscall]") ||
        (range.start <= (uint64_t)s && (uint64_t)s < range.end))
        return 0;
    if (s->image.map_count > MAPPINGS_MOST - 4) return refuse(s, "there are too many mappings");
    if (ph_is_kernel_page(mapping)) {
        if (s->image.kernel_page_count == PH_VDSO_MOST) return refuse(s, "an unknown kernel");
        s->image.kernel_pages[s->image.kernel_page_count++] = range;
        return 0;
    }
    if (!strcmp(mapping->path, "[stack]")) return add_stack(s, range);
    bool file = mapping->path[0] == '/';
    if (mapping->strange) return refuse(s, "memory of an unknown kind (%s)", mapping->path);
    if (mapping->wiped || mapping->droppable) {
        add(s, range.start, range.end, mapping->droppable ? PH_IMAGE_DROPPED : PH_IMAGE_WIPED,
            mapping->protection);
        return 0;
    }
    if (mapping->shared) {
        if (!file || mapping->protection & PROT_WRITE)
            return refuse(s, "memory is shared with other processes (%s)", mapping->path);
        return add_file(s, mapping, range, PH_IMAGE_SHARED);
    }
    if (!file && mapping->path[0] && strcmp(mapping->path, "[heap]") &&
        strncmp(mapping->path, "[anon", 5))
        return refuse(s, "an unknown mapping %s", mapping->path);
    bool own = false;
    int64_t pages = run_of_pages(s, range.start, range.end, &own);
    if (pages < 0) return refuse(s, "/proc/self/pagemap cannot be read");
    bool clean = !own && (uint64_t)pages == (range.end - range.start) / PH_PAGE;
    if (!(mapping->protection & PROT_EXEC) || clean) return add_private(s, mapping, file);
    /* Code that was made or changed. A folder may forbid to map files for execution. */
    if (!(mapping->protection & PROT_READ)) return refuse(s, "there is memory that cannot be read");
    add(s, range.start, range.end, PH_IMAGE_COPY, mapping->protection)->copied =
        range.end - range.start;
    return 0;
}

static bool is_zero(const uint64_t *page)
{
    uint64_t any = 0;
    for (int i = 0; i < PH_PAGE / 8; i++) any |= page[i];
    return !any;
}

/* Writes memory at the end of the image. Pages of zeros become a hole. */
static int write_pages(struct scratch *s, uint64_t start, uint64_t length)
{
    for (uint64_t at = 0; at < length;) {
        uint64_t run = at;
        while (run < length && !is_zero((const uint64_t *)(start + run))) run += PH_PAGE;
        for (uint64_t done = at; done < run;) {
            ssize_t wrote =
                pwrite(s->fd, (const void *)(start + done), run - done, (off_t)(s->end + done));
            if (wrote <= 0) return refuse(s, "writing the image: %s", strerror(errno));
            done += (uint64_t)wrote;
        }
        at = run + PH_PAGE;
    }
    s->end += length;
    return 0;
}

static int write_all(struct scratch *s)
{
    uint64_t maps_bytes = s->image.map_count * sizeof s->maps[0];
    s->end = sizeof s->image + s->image.key_length + maps_bytes + s->image.string_bytes;
    s->end = (s->end + PH_PAGE - 1) & ~(uint64_t)(PH_PAGE - 1);
    for (uint64_t i = 0; i < s->image.map_count; i++) {
        struct ph_image_map *map = &s->maps[i];
        if (map->kind != PH_IMAGE_PAGES && map->kind != PH_IMAGE_COPY) continue;
        uint64_t length = map->kind == PH_IMAGE_COPY ? map->copied : map->length;
        map->offset = s->end;
        if (write_pages(s, map->start + map->length - length, length)) return -1;
    }
    if (ftruncate(s->fd, (off_t)s->end)) return refuse(s, "writing the image: %s", strerror(errno));
    off_t at = 0;
    const struct {
        const void *data;
        size_t length;
    } parts[] = {{&s->image, sizeof s->image},
                 {s->key, s->image.key_length},
                 {s->maps, maps_bytes},
                 {s->strings, s->image.string_bytes}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; at += (off_t)parts[i++].length)
        if (pwrite(s->fd, parts[i].data, parts[i].length, at) != (ssize_t)parts[i].length)
            return refuse(s, "writing the image: %s", strerror(errno));
    return 0;
}

static int describe_process(struct scratch *s)
{
    struct ph_image *image = &s->image;
    struct ph_thread_state *thread = &image->thread;
    *image = (struct ph_image){.magic = PH_IMAGE_MAGIC,
                               .key_length = strlen(s->key),
                               .arrival = (uint64_t)&arrival,
                               .start_code = ph_stat_field(26),
                               .end_code = ph_stat_field(27),
                               .start_data = ph_stat_field(45),
                               .end_data = ph_stat_field(46),
                               .start_brk = ph_stat_field(47),
                               .brk = (uint64_t)sbrk(0)};
    uint64_t list = 0;
    size_t length = 0;
    if (syscall(SYS_arch_prctl, ARCH_GET_FS, &thread->fs) ||
        prctl(PR_GET_TID_ADDRESS, &thread->tid_address) ||
        syscall(SYS_get_robust_list, 0, &list, &length))
        return refuse(s, "this kernel does not tell a thread's state");
    int fd = open("/proc/self/auxv", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, image->auxiliary, sizeof image->auxiliary);
    if (fd >= 0) close(fd);
    image->auxiliary_bytes = got > 0 ? (uint64_t)got : 0;
    thread->robust_list = list;
    thread->robust_length = length;
    thread->rseq_length = ph_rseq(&thread->rseq);
    return 0;
}

static int write_image(struct scratch *s)
{
    s->now_count = ph_read_maps(s->now, MAPPINGS_MOST, s->text, TEXT_BYTES);
    if (s->now_count < 0) return refuse(s, "/proc/self/maps cannot be read");
    if (!ph_read_flags(s->now, s->now_count, s->flags_text, TEXT_BYTES))
        return refuse(s, "/proc/self/smaps cannot be read");
    for (int i = 0; i < s->now_count; i++)
        if (add_mapping(s, &s->now[i])) return -1;
    return write_all(s);
}

int ph_image_take(const char *path, const char *key, char *why, size_t why_size)
{
    struct scratch *volatile s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) return -1;
    s->key = key;
    s->why = why;
    s->why_size = why_size;
    s->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    s->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    int result;
    if (s->fd < 0 || s->pagemap < 0)
        result = refuse(s, "%s: %s", s->fd < 0 ? path : "/proc/self/pagemap", strerror(errno));
    else if (describe_process(s))
        result = -1;
    else if (ph_registers_save(&s->image.registers)) {
        munmap((void *)arrival.plan.start, arrival.plan.end - arrival.plan.start);
        return 1;
    } else
        result = write_image(s);
    if (s->fd >= 0) close(s->fd);
    if (s->pagemap >= 0) close(s->pagemap);
    munmap(s, sizeof *s);
    return result;
}
