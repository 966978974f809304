/* base/map_file.c - see base/map_file.h. */
#include "base/map_file.h"
#include "base/environment.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void *ph_map_file(const char *name, bool writable, char path[512], size_t *bytes)
{
    struct stat status;
    int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    snprintf(path, 512, "%s/%s", ph_env("PHANTORA_RUN_DIR"), name);
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) ph_die("cannot open %s: %s", path, strerror(errno));
    *bytes = (size_t)status.st_size;
    void *map = *bytes ? mmap(NULL, *bytes, protection, MAP_SHARED, fd, 0) : NULL;
    if (map == MAP_FAILED)
        ph_die("cannot map %s: %s; raise ulimit -v, or start fewer ranks", path, strerror(errno));
    close(fd);
    return map;
}
