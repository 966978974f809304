/* simulated/files/holes.c - large writes of zeros to files take no disk.
 *
 * Why it exists: what a simulated GPU holds reads as zero, so a checkpoint of a large model is tens
 * of gigabytes of zeros. A stretch of zeros becomes a hole of the file: its size and contents are
 * those of a plain write, without the blocks. Rule: only large writes to regular files are looked
 * at, and whatever cannot be a hole is written.
 *
 * A write that the C library makes inside of itself (fwrite), and one through a memory map, is not
 * seen here. */
#define _GNU_SOURCE /* RTLD_NEXT, fallocate */
#include "base/api.h"
#include "base/environment.h"
#include "base/lookup.h"
#include "time/host_clock.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LARGE = 1 << 20, STRETCH = 64 << 10, MAX_PARTS = 1024 /* of writev: UIO_MAXIOV */ };

typedef ssize_t (*write_type)(int, const void *, size_t);
typedef ssize_t (*writev_type)(int, const struct iovec *, int);
typedef ssize_t (*pwrite_type)(int, const void *, size_t, off_t);
static write_type real_write;
static writev_type real_writev;
static pwrite_type real_pwrite;
static double bytes_per_ns; /* of the cluster's storage; 0: as fast as here */

/* Before any other thread, since a write may come from a signal handler. */
__attribute__((constructor)) static void find_real(void)
{
    const char *bandwidth = ph_env("PHANTORA_STORAGE_BANDWIDTH");
    if (bandwidth) bytes_per_ns = strtod(bandwidth, NULL);
    real_writev = (writev_type)ph_real_dlsym()(RTLD_NEXT, "writev");
    real_pwrite = (pwrite_type)ph_real_dlsym()(RTLD_NEXT, "pwrite64");
    real_write = (write_type)ph_real_dlsym()(RTLD_NEXT, "write");
}

/* The constructors of other libraries may write before ours runs. */
static ssize_t write_plainly(int fd, const void *data, size_t bytes)
{
    if (!real_write) find_real();
    return real_write(fd, data, bytes);
}

static bool all_zero(const char *data, size_t bytes)
{
    return data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

/* How many bytes from `data` on, in whole stretches but for the last, are zero or are not, as
 * `zero` says of the first one. */
static size_t run_of(const char *data, size_t bytes, bool *zero)
{
    size_t length = 0;
    while (length < bytes) {
        size_t part = bytes - length < STRETCH ? bytes - length : STRETCH;
        bool is_zero = all_zero(data + length, part);
        if (length == 0)
            *zero = is_zero;
        else if (is_zero != *zero)
            break;
        length += part;
    }
    return length;
}

/* Makes `bytes` from `at` on a hole. What the file has there is given up. Its end is moved by one
 * written byte, because truncating to a size could cut off what another process appends meanwhile.
 * False: the file system cannot. */
static bool make_hole(int fd, off_t at, size_t bytes)
{
    struct stat status;
    off_t end = at + (off_t)bytes;
    if (fstat(fd, &status) != 0) return false;
    if (at < status.st_size) {
        off_t there = status.st_size < end ? status.st_size - at : (off_t)bytes;
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, there) != 0) return false;
    }
    return end <= status.st_size || real_pwrite(fd, "", 1, end - 1) == 1;
}

/* Writes at an offset, zeros as holes. Returns as pwrite does. */
static ssize_t put(int fd, const char *data, size_t bytes, off_t at)
{
    size_t done = 0;
    while (done < bytes) {
        bool zero;
        size_t run = run_of(data + done, bytes - done, &zero);
        if (!zero || run < STRETCH || !make_hole(fd, at + (off_t)done, run)) {
            ssize_t written = real_pwrite(fd, data + done, run, at + (off_t)done);
            if (written < 0) return done ? (ssize_t)done : -1;
            done += (size_t)written;
            if ((size_t)written < run) break;
        } else {
            done += run;
        }
    }
    return (ssize_t)done;
}

/* A file of which every part can be written by itself, at the place where the caller is. */
static bool takes_holes(int fd, off_t *at)
{
    struct stat status;
    int before = errno, flags = fcntl(fd, F_GETFL);
    bool takes = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY &&
                 !(flags & (O_APPEND | O_DIRECT)) && fstat(fd, &status) == 0 &&
                 S_ISREG(status.st_mode) && (!at || (*at = lseek(fd, 0, SEEK_CUR)) >= 0);
    errno = before;
    return takes;
}

/* The cluster's storage takes its own time instead of this machine's. */
static void begin_storage(void)
{
    if (bytes_per_ns > 0) ph_host_pause();
}

static void end_storage(ssize_t bytes)
{
    if (bytes_per_ns <= 0) return;
    int failed = errno;
    ph_host_resume();
    if (bytes > 0) ph_host_pass((uint64_t)((double)bytes / bytes_per_ns));
    errno = failed;
}

PH_API(ssize_t, write, (int fd, const void *data, size_t bytes))
{
    off_t at;
    if (bytes < LARGE || !real_write || !takes_holes(fd, &at))
        return write_plainly(fd, data, bytes);
    begin_storage();
    ssize_t written = put(fd, data, bytes, at);
    if (written > 0) lseek(fd, at + written, SEEK_SET);
    end_storage(written);
    return written;
}

static ssize_t pwrite_holes(int fd, const void *data, size_t bytes, off_t at)
{
    if (!real_pwrite) find_real();
    if (bytes < LARGE || at < 0 || !takes_holes(fd, NULL)) return real_pwrite(fd, data, bytes, at);
    begin_storage();
    ssize_t written = put(fd, data, bytes, at);
    end_storage(written);
    return written;
}

PH_API(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t at))
{
    return pwrite_holes(fd, data, bytes, at);
}

PH_API(ssize_t, pwrite64, (int fd, const void *data, size_t bytes, off_t at))
{
    return pwrite_holes(fd, data, bytes, at);
}

PH_API(ssize_t, writev, (int fd, const struct iovec *parts, int count))
{
    size_t bytes = 0;
    off_t at;
    for (int i = 0; i < count && i < MAX_PARTS; i++)
        bytes = bytes + parts[i].iov_len < bytes ? 0 : bytes + parts[i].iov_len;
    if (!real_writev) find_real();
    if (bytes < LARGE || bytes > SSIZE_MAX || count > MAX_PARTS || !takes_holes(fd, &at))
        return real_writev(fd, parts, count);
    begin_storage();
    ssize_t done = 0;
    for (int i = 0; i < count; i++) {
        ssize_t written = put(fd, parts[i].iov_base, parts[i].iov_len, at + done);
        if (written < 0 && done == 0) done = -1;
        if (written < 0) break;
        done += written;
        if ((size_t)written < parts[i].iov_len) break;
    }
    if (done > 0) lseek(fd, at + done, SEEK_SET);
    end_storage(done);
    return done;
}
