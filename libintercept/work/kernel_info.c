/* work/kernel_info.c - maps the kernel info file and finds kernels in it by mangled name.
 *
 * Why it exists: see work/kernel_info.h.
 *
 * Rule: no byte of the file is trusted. Every offset is checked before use, so that a damaged cache
 * cannot crash the job. Layout: docs/wire-protocol.md. */
#include "work/kernel_info.h"
#include "base/environment.h"
#include "base/fnv1a.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const unsigned char *file; /* NULL: no usable file */
static const struct ph_kernel_info_header *header;

static bool table_fits(const struct ph_kernel_info_header *h, uint64_t at, uint64_t count,
                       uint64_t size)
{
    return at % 8 == 0 && at >= sizeof *h && at <= h->file_bytes &&
           count <= (h->file_bytes - at) / size;
}

static bool header_is_sound(const struct ph_kernel_info_header *h, uint64_t bytes)
{
    return bytes >= sizeof *h && h->magic == PH_KERNEL_INFO_MAGIC &&
           h->version == PH_KERNEL_INFO_VERSION && h->file_bytes == bytes && h->slots > 0 &&
           (h->slots & (h->slots - 1)) == 0 && h->kernels < h->slots &&
           table_fits(h, h->slots_at, h->slots, sizeof(uint32_t)) &&
           table_fits(h, h->records_at, h->kernels, sizeof(struct ph_kernel_info)) &&
           table_fits(h, h->params_at, h->params, sizeof(struct ph_kernel_param)) &&
           table_fits(h, h->names_at, 1, 1);
}

static void map_file(void)
{
    const char *path = ph_env("PHANTORA_KERNEL_INFO");
    if (!path) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
        ph_warn("cannot open the kernel info file %s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return;
    }
    void *map = status.st_size ? mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0)
                               : MAP_FAILED;
    close(fd);
    if (map == MAP_FAILED && status.st_size) {
        ph_warn("cannot map the kernel info file %s: %s; raise ulimit -v", path, strerror(errno));
        return;
    }
    if (map == MAP_FAILED || !header_is_sound(map, (uint64_t)status.st_size)) {
        ph_warn(
            "the kernel info file %s is damaged or of another version: delete it, it is rebuilt",
            path);
        if (map != MAP_FAILED) munmap(map, (size_t)status.st_size);
        return;
    }
    header = map;
    file = map;
}

static bool is_named(const struct ph_kernel_info *record, const char *name, size_t length)
{
    uint64_t room = header->file_bytes - header->names_at;
    return record->name_bytes == length && record->name <= room && length <= room - record->name &&
           memcmp(file + header->names_at + record->name, name, length) == 0;
}

const struct ph_kernel_info *ph_kernel_info(const char *mangled_name)
{
    pthread_once(&once, map_file);
    if (!file || !mangled_name) return NULL;
    size_t length = strlen(mangled_name);
    uint64_t hash = ph_fnv1a(PH_FNV1A, mangled_name, length);
    const uint32_t *slots = (const uint32_t *)(const void *)(file + header->slots_at);
    const struct ph_kernel_info *records =
        (const struct ph_kernel_info *)(const void *)(file + header->records_at);
    uint32_t mask = header->slots - 1;
    for (uint32_t probe = 0, slot = (uint32_t)hash & mask; probe <= mask;
         probe++, slot = (slot + 1) & mask) {
        uint32_t index = slots[slot];
        if (index == 0 || index > header->kernels) return NULL;
        const struct ph_kernel_info *record = &records[index - 1];
        if (record->hash == hash && is_named(record, mangled_name, length))
            return ph_kernel_params(record) ? record : NULL;
    }
    return NULL;
}

const struct ph_kernel_param *ph_kernel_params(const struct ph_kernel_info *info)
{
    if (info->first_param > header->params ||
        info->param_count > header->params - info->first_param)
        return NULL;
    return (const struct ph_kernel_param *)(const void *)(file + header->params_at) +
           info->first_param;
}
