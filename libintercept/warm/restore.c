/* warm/restore.c - whether this process can become that of an image, and how. See warm/image.h.
 *
 * Why it exists: nothing can be undone once the first mapping is gone. So all that can fail is
 * tried or compared here. */
#define _GNU_SOURCE
#include "warm/image.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAPPINGS_MOST = 900, TEXT_BYTES = 256 << 10, CODE_BYTES = 64 << 10 };
/* far from where Linux puts programs, libraries and stacks */
static const uint64_t FIRST_PLACE = 0x10000000000, LAST_PLACE = 0x18000000000,
                      STRIDE = 0x1000000000;

struct load {
    int fd;
    struct ph_image *image; /* with its key, maps and strings */
    size_t image_bytes;
    struct ph_image_map *maps;
    const char *strings;
    struct ph_mapping now[MAPPINGS_MOST];
    int now_count;
    char text[TEXT_BYTES];
};

static bool overlap(uint64_t start, uint64_t end, uint64_t other_start, uint64_t other_end)
{
    return start < other_end && other_start < end;
}

static const char *read_image(struct load *load, const char *key)
{
    struct ph_image head;
    if (pread(load->fd, &head, sizeof head, 0) != sizeof head || head.magic != PH_IMAGE_MAGIC)
        return "the image cannot be read";
    if (head.key_length != strlen(key)) return "the image has another key";
    load->image_bytes = sizeof head + head.key_length +
                        head.map_count * sizeof(struct ph_image_map) + head.string_bytes;
    load->image = malloc(load->image_bytes);
    if (!load->image ||
        pread(load->fd, load->image, load->image_bytes, 0) != (ssize_t)load->image_bytes)
        return "the image cannot be read";
    const char *its_key = (const char *)(load->image + 1);
    if (memcmp(its_key, key, head.key_length)) return "the image has another key";
    const char *maps = its_key + head.key_length;
    load->maps = (struct ph_image_map *)maps;
    load->strings = maps + head.map_count * sizeof(struct ph_image_map);
    return NULL;
}

/* The files that the image had mapped are still the same. */
static const char *check_files(const struct load *load)
{
    uint64_t last = UINT64_MAX;
    for (uint64_t i = 0; i < load->image->map_count; i++) {
        struct ph_image_map map;
        memcpy(&map, &load->maps[i], sizeof map);
        struct stat status;
        if ((map.kind != PH_IMAGE_FILE && map.kind != PH_IMAGE_SHARED) || map.path == last)
            continue;
        last = map.path;
        if (stat(load->strings + map.path, &status)) return "a library is gone";
        if (status.st_dev != map.device || status.st_ino != map.inode ||
            (uint64_t)status.st_size != map.size ||
            (uint64_t)status.st_mtim.tv_sec * 1000000000 + (uint64_t)status.st_mtim.tv_nsec !=
                map.modified_ns)
            return "a library has changed";
    }
    return NULL;
}

static bool free_in_image(const struct load *load, uint64_t start, uint64_t end)
{
    for (uint64_t i = 0; i < load->image->map_count; i++) {
        struct ph_image_map map;
        memcpy(&map, &load->maps[i], sizeof map);
        if (overlap(start, end, map.start, map.start + map.length)) return false;
    }
    for (uint64_t i = 0; i < load->image->kernel_page_count; i++)
        if (overlap(start, end, load->image->kernel_pages[i].start,
                    load->image->kernel_pages[i].end))
            return false;
    return true;
}

static bool free_now(const struct load *load, uint64_t start, uint64_t end)
{
    for (int i = 0; i < load->now_count; i++)
        if (overlap(start, end, load->now[i].range.start, load->now[i].range.end)) return false;
    return true;
}

/* What stays: the stack, with the arguments that the kernel shows, and what the kernel provides. */
static const char *plan_leaving(const struct load *load, struct ph_plan *plan)
{
    uint64_t kernel_pages = 0;
    const struct ph_image *image = load->image;
    for (int i = 0; i < load->now_count; i++) {
        const struct ph_mapping *mapping = &load->now[i];
        const struct ph_range range = mapping->range;
        if (!strcmp(mapping->path, "[stack]")) {
            if (!free_in_image(load, range.start, range.end)) return "the stack lies in the way";
        } else if (ph_is_kernel_page(mapping)) {
            uint64_t length = range.end - range.start;
            if (kernel_pages == image->kernel_page_count) return "another kernel";
            const struct ph_range to = image->kernel_pages[kernel_pages++];
            if (to.end - to.start != length) return "another kernel";
            for (int j = 0; j < load->now_count; j++)
                if ((ph_is_kernel_page(&load->now[j]) || !strcmp(load->now[j].path, "[stack]")) &&
                    overlap(to.start, to.end, load->now[j].range.start, load->now[j].range.end))
                    return "the kernel's pages lie in the way";
            plan->move[plan->move_count].from = range.start;
            plan->move[plan->move_count].to = to.start;
            plan->move[plan->move_count++].length = length;
        } else if (strcmp(mapping->path, "[vsyscall]")) {
            if (plan->leave_count && plan->leave[plan->leave_count - 1].end == range.start)
                plan->leave[plan->leave_count - 1].end = range.end;
            else
                plan->leave[plan->leave_count++] = range;
        }
    }
    return kernel_pages == image->kernel_page_count ? NULL : "another kernel";
}

/* Memory for the plan and for the code that carries it out, at an address that is free both now
 * and in the image. */
static struct ph_plan *find_place(const struct load *load, uint64_t *length)
{
    *length = sizeof(struct ph_plan) + load->image->map_count * sizeof(struct ph_step) +
              load->image->string_bytes + CODE_BYTES + PH_PAGE;
    *length = (*length + PH_PAGE - 1) & ~(uint64_t)(PH_PAGE - 1);
    for (uint64_t at = FIRST_PLACE; at < LAST_PLACE; at += STRIDE) {
        if (!free_now(load, at, at + *length) || !free_in_image(load, at, at + *length)) continue;
        void *place =
            mmap((void *)at, *length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == (void *)at) return place;
        if (place != MAP_FAILED) munmap(place, *length);
    }
    return NULL;
}

static void plan_steps(const struct load *load, struct ph_plan *plan)
{
    struct ph_step *steps = (struct ph_step *)(plan + 1);
    char *strings = (char *)(steps + load->image->map_count);
    memcpy(strings, load->strings, load->image->string_bytes);
    for (uint64_t i = 0; i < load->image->map_count; i++) {
        struct ph_image_map map;
        memcpy(&map, &load->maps[i], sizeof map);
        bool file = map.kind == PH_IMAGE_FILE || map.kind == PH_IMAGE_SHARED;
        steps[i] = (struct ph_step){.start = map.start,
                                    .length = map.length,
                                    .offset = map.offset,
                                    .copied = map.copied,
                                    .path = file ? strings + map.path : NULL,
                                    .protection = map.protection,
                                    .kind = (int32_t)map.kind};
    }
    plan->steps = steps;
    plan->step_count = load->image->map_count;
}

static void plan_memory(const struct load *load, struct ph_plan *plan)
{
    const struct ph_image *image = load->image;
    memcpy(plan->auxiliary, image->auxiliary, sizeof plan->auxiliary);
    plan->mm = (struct prctl_mm_map){.start_code = image->start_code,
                                     .end_code = image->end_code,
                                     .start_data = image->start_data,
                                     .end_data = image->end_data,
                                     .start_brk = image->start_brk,
                                     .brk = image->brk,
                                     .start_stack = ph_stat_field(28),
                                     .arg_start = ph_stat_field(48),
                                     .arg_end = ph_stat_field(49),
                                     .env_start = ph_stat_field(50),
                                     .env_end = ph_stat_field(51),
                                     .auxv = (__u64 *)plan->auxiliary,
                                     .auxv_size = (uint32_t)image->auxiliary_bytes,
                                     .exe_fd = (uint32_t)-1};
}

static const char *prepare(struct load *load, const char *key, struct ph_plan **made,
                           uint64_t *length)
{
    const char *why = read_image(load, key);
    if (!why) why = check_files(load);
    if (why) return why;
    struct ph_plan *plan = NULL;
    load->now_count = ph_read_maps(load->now, MAPPINGS_MOST, load->text, sizeof load->text);
    if (load->now_count < 0 || !(plan = find_place(load, length)))
        return "no room for the image's plan";
    *made = plan;
    if ((why = plan_leaving(load, plan))) return why;
    plan_steps(load, plan);
    plan_memory(load, plan);
    return NULL;
}

/* Its return addresses would not be the image's. */
static bool has_shadow_stack(void)
{
    enum { ARCH_SHSTK_STATUS = 0x5005 }; /* asm/prctl.h */
    uint64_t features = 0;
    return !syscall(SYS_arch_prctl, ARCH_SHSTK_STATUS, &features) && features & 1;
}

const char *ph_image_restore(const char *path, const char *key, int argc, char **argv,
                             char **environment)
{
    struct load *load = calloc(1, sizeof *load);
    struct ph_plan *plan = NULL;
    uint64_t length = 0, area = 0;
    if (!load) return "no memory";
    load->fd = open(path, O_RDONLY | O_CLOEXEC);
    const char *why =
        load->fd < 0 ? "the image cannot be opened" : prepare(load, key, &plan, &length);
    struct ph_range code = ph_arrive_code();
    uint64_t rseq_length = ph_rseq(&area);
    if (!why && code.end - code.start > CODE_BYTES) why = "its code is too long";
    if (!why && has_shadow_stack()) why = "a shadow stack";
    if (!why && rseq_length &&
        syscall(SYS_rseq, area, rseq_length, 1 /* unregister */, PH_RSEQ_SIGNATURE))
        why = "rseq cannot be given up";
    if (why) {
        if (plan) munmap(plan, length);
        if (load->fd >= 0) close(load->fd);
        free(load->image);
        free(load);
        return why;
    }
    plan->image_fd = load->fd;
    plan->thread = load->image->thread;
    plan->registers = load->image->registers;
    plan->arrival_at = (struct ph_arrival *)load->image->arrival;
    plan->arrival =
        (struct ph_arrival){argc, argv, environment, {(uint64_t)plan, (uint64_t)plan + length}};
    char *place = (char *)plan + length - CODE_BYTES;
    memcpy(place, (void *)code.start, code.end - code.start);
    if (mprotect(place, CODE_BYTES, PROT_READ | PROT_EXEC)) _exit(70);
    uint64_t entry = (uint64_t)place + ((uint64_t)ph_arrive - code.start);
    ((void (*)(const struct ph_plan *))entry)(plan);
    __builtin_unreachable();
}
