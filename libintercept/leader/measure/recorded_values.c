/* recorded_values.c - records the values that the leader's GPU computes and its job steers by, for
 * --values replay.
 *
 * Why it exists: a simulated rank can only be given a GPU's routes, losses and flags if they were
 * recorded. Recorded are the results of operators that choose by value (values/replay.cpp says
 * which) and small reads by the host, under their replay key and occurrence (work/occurrence.c).
 * They are appended to RUN_DIR/values.rec as they come, so nothing is lost however the job ends.
 * Integers are stored in the narrowest type that holds them, because routes are most of the bytes.
 * Rule: nothing here waits for the GPU, which may be waiting for other ranks, and a host function
 * makes no CUDA call. */
#include "base/environment.h"
#include "base/log.h"
#include "base/memory.h"
#include "work/occurrence.h"
#include "leader/leader.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COPY_DEFAULT = 4 };
#define MOST_BYTES (1ull << 30) /* the size limit of one run's file */

int cudaMemcpyAsync(void *, const void *, size_t, int, void *), cudaStreamSynchronize(void *);
int cudaLaunchHostFunc(void *, void (*)(void *), void *);

struct recording {
    struct ph_lead_pinned *pinned; /* NULL: `from` is the job's own memory */
    const void *from;
    size_t bytes;
    uint32_t occurrence;
    int dtype;
    char key[PH_REPLAY_KEY];
};
static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the file ---- */
static int narrowest(const int64_t *values, size_t count)
{
    int64_t low = 0, high = 0;
    for (size_t i = 0; i < count; i++)
        low = values[i] < low ? values[i] : low, high = values[i] > high ? values[i] : high;
    if (low >= 0 && high <= UINT8_MAX) return PH_SCALAR_UINT8;
    if (low >= INT16_MIN && high <= INT16_MAX) return PH_SCALAR_INT16;
    return low >= INT32_MIN && high <= INT32_MAX ? PH_SCALAR_INT32 : PH_SCALAR_INT64;
}

static void *narrowed(const int64_t *values, size_t count, int dtype)
{
    void *to = malloc(count * 4 + 1);
    for (size_t i = 0; to && i < count; i++) {
        if (dtype == PH_SCALAR_UINT8)
            ((uint8_t *)to)[i] = (uint8_t)values[i];
        else if (dtype == PH_SCALAR_INT16)
            ((int16_t *)to)[i] = (int16_t)values[i];
        else
            ((int32_t *)to)[i] = (int32_t)values[i];
    }
    return to;
}

static bool append(const struct iovec *parts, int count, size_t bytes)
{
    static int file = -1;
    static uint64_t written;
    if (file < 0) {
        char path[512];
        snprintf(path, sizeof path, "%s/" PH_VALUE_RECORD_FILE, ph_env("PHANTORA_RUN_DIR"));
        file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    if ((written += bytes) > MOST_BYTES) return errno = EFBIG, false;
    return file >= 0 && writev(file, parts, count) == (ssize_t)bytes;
}

static void write_down(const struct recording *recording)
{
    static const uint8_t width[] = {1, 1, 2, 4, 8};
    static bool full;
    int dtype = recording->dtype == PH_SCALAR_INT64
                    ? narrowest(recording->from, recording->bytes / 8)
                    : recording->dtype;
    void *narrow =
        dtype == recording->dtype ? NULL : narrowed(recording->from, recording->bytes / 8, dtype);
    struct ph_value_record head = {
        .value_bytes = (uint32_t)(narrow ? recording->bytes / 8 * width[dtype] : recording->bytes),
        .occurrence = recording->occurrence,
        .key_bytes = (uint16_t)strlen(recording->key),
        .dtype = (uint8_t)(narrow ? dtype : recording->dtype)};
    struct iovec parts[] = {{&head, sizeof head},
                            {(void *)recording->key, head.key_bytes},
                            {narrow ? narrow : (void *)recording->from, head.value_bytes}};
    pthread_mutex_lock(&file_lock);
    if (!full && !append(parts, 3, sizeof head + head.key_bytes + head.value_bytes)) {
        full = true; /* a gap would give later values wrong occurrences */
        ph_warn("no further values are recorded: %s",
                errno == EFBIG ? "the file has grown to 1 GiB" : strerror(errno));
    }
    pthread_mutex_unlock(&file_lock);
    free(narrow);
}

/* ---- values on their way to the file ---- */
static struct recording *new_recording(const char *key, uint32_t occurrence, const void *from,
                                       size_t bytes, int dtype)
{
    struct recording *recording = calloc(1, sizeof *recording);
    if (!recording) ph_die("out of host memory");
    strcpy(recording->key, key);
    recording->occurrence = occurrence, recording->from = from, recording->bytes = bytes,
    recording->dtype = dtype;
    return recording;
}

/* On CUDA's own thread, in the order of the stream. */
static void arrived(void *data)
{
    struct recording *recording = data;
    write_down(recording);
    if (recording->pinned) ph_lead_unpin(recording->pinned);
    free(recording);
}

static void when_there(struct recording *recording, void *stream)
{
    if (!ph_lead_keeps_order())
        ph_lead_settle(stream), PH_REAL(cudaStreamSynchronize)(stream), arrived(recording);
    else if (PH_REAL(cudaLaunchHostFunc)(stream, arrived, recording) != 0)
        ph_die("the leader cannot queue a host function: the job's own earlier error");
}

bool ph_lead_keeps_values(void) { return ph_lead_records() == PH_RECORD_VALUES; }

void ph_lead_keep_read(const void *host, size_t bytes, void *stream, bool there)
{
    if (!ph_lead_keeps_values() || bytes > PH_SMALL_BYTES) return;
    char key[PH_REPLAY_KEY];
    ph_read_replay_key(key, bytes);
    struct recording *recording =
        new_recording(key, ph_occurrence(ph_replay_key_hash(key)), host, bytes, PH_SCALAR_UINT8);
    if (there)
        arrived(recording);
    else
        when_there(recording, stream);
}

/* For the values library: whether results are recorded, and one result. */
PH_API(int, phantora_values_records, (void)) { return ph_lead_keeps_values(); }
PH_API(void, phantora_values_record,
       (const char *key, const void *device, size_t bytes, int dtype, void *stream))
{
    if (ph_lead_capturing(stream) || strlen(key) >= PH_REPLAY_KEY) return;
    uint32_t occurrence = ph_occurrence(ph_replay_key_hash(key));
    if (!bytes) return;
    ph_host_pause();
    ph_lead_copying(true);
    struct ph_lead_pinned *pinned = ph_lead_pin(bytes, stream);
    struct recording *recording = new_recording(key, occurrence, pinned->bytes, bytes, dtype);
    recording->pinned = pinned;
    if (PH_REAL(cudaMemcpyAsync)(pinned->bytes, device, bytes, COPY_DEFAULT, stream) != 0)
        ph_die("the leader cannot read a result back: the job's own earlier error");
    when_there(recording, stream);
    ph_lead_copying(false);
    ph_host_resume();
}
