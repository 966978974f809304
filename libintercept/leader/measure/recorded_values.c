/* values.c - what the leader's GPU computed and its job steers by, written down for --values
 * replay.
 *
 * Why it exists: a simulated rank can be told the routes, losses and flags that a GPU computed only
 * if somebody kept them. Kept are the results of operators that choose by values
 * (libintercept/values/replay.cpp says which) and small reads by the host, by question and occasion
 * (work/occurrence.c), appended to RUN_DIR/values.rec as they come, so that whatever ends the job
 * costs nothing. Integers are kept in the narrowest type that holds them: routes are most of the
 * bytes. Rule: nothing here waits for the GPU, which may be waiting for other ranks, and no call of
 * CUDA's is made in a host function. */
#include "leader/leader.h"
#include "leader/measure/measure.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COPY_DEFAULT = 4 };
#define MOST_BYTES (1ull << 30) /* of one run's file */

int cudaMemcpyAsync(void *, const void *, size_t, int, void *), cudaStreamSynchronize(void *);
int cudaLaunchHostFunc(void *, void (*)(void *), void *);

struct kept {
    struct ph_lead_pinned *pinned; /* NULL: `from` is the job's own memory */
    const void *from;
    size_t bytes;
    uint32_t occasion;
    int dtype;
    char question[PH_QUESTION];
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

static void write_down(const struct kept *kept)
{
    static const uint8_t width[] = {1, 1, 2, 4, 8};
    static bool full;
    int dtype =
        kept->dtype == PH_SCALAR_INT64 ? narrowest(kept->from, kept->bytes / 8) : kept->dtype;
    void *narrow = dtype == kept->dtype ? NULL : narrowed(kept->from, kept->bytes / 8, dtype);
    struct ph_value_record head = {
        .bytes = (uint32_t)(narrow ? kept->bytes / 8 * width[dtype] : kept->bytes),
        .occurrence = kept->occasion,
        .key_bytes = (uint16_t)strlen(kept->question),
        .dtype = (uint8_t)(narrow ? dtype : kept->dtype)};
    struct iovec parts[] = {{&head, sizeof head},
                            {(void *)kept->question, head.key_bytes},
                            {narrow ? narrow : (void *)kept->from, head.bytes}};
    pthread_mutex_lock(&file_lock);
    if (!full && !append(parts, 3, sizeof head + head.key_bytes + head.bytes)) {
        full = true; /* a hole would put later values in the wrong place of those who ask again */
        ph_warn("values are recorded no further: %s",
                errno == EFBIG ? "the file has grown to 1 GiB" : strerror(errno));
    }
    pthread_mutex_unlock(&file_lock);
    free(narrow);
}

/* ---- on their way ---- */
static struct kept *new_kept(const char *question, uint32_t occasion, const void *from,
                             size_t bytes, int dtype)
{
    struct kept *kept = calloc(1, sizeof *kept);
    if (!kept) ph_die("out of host memory");
    strcpy(kept->question, question);
    kept->occasion = occasion, kept->from = from, kept->bytes = bytes, kept->dtype = dtype;
    return kept;
}

/* CUDA's own thread, in the order of the stream. */
static void arrived(void *data)
{
    struct kept *kept = data;
    write_down(kept);
    if (kept->pinned) ph_lead_unpin(kept->pinned);
    free(kept);
}

static void when_there(struct kept *kept, void *stream)
{
    if (!ph_lead_keeps_order())
        ph_lead_settle(stream), PH_REAL(cudaStreamSynchronize)(stream), arrived(kept);
    else if (PH_REAL(cudaLaunchHostFunc)(stream, arrived, kept) != 0)
        ph_die("the leader cannot queue a host function: the job's own earlier error");
}

bool ph_lead_keeps_values(void) { return ph_lead_records() == PH_RECORD_VALUES; }

void ph_lead_keep_read(const void *host, size_t bytes, void *stream, bool there)
{
    if (!ph_lead_keeps_values() || bytes > PH_SMALL_BYTES) return;
    char question[PH_QUESTION];
    ph_read_question(question, bytes);
    struct kept *kept =
        new_kept(question, ph_occasion(ph_question_hash(question)), host, bytes, PH_SCALAR_UINT8);
    if (there)
        arrived(kept);
    else
        when_there(kept, stream);
}

/* The values library: whether results are to be handed over, and one of them. */
PH_API(int, phantora_values_records, (void)) { return ph_lead_keeps_values(); }
PH_API(void, phantora_values_record,
       (const char *question, const void *device, size_t bytes, int dtype, void *stream))
{
    if (ph_lead_capturing(stream) || strlen(question) >= PH_QUESTION) return;
    uint32_t occasion = ph_occasion(ph_question_hash(question));
    if (!bytes) return;
    ph_host_pause();
    ph_lead_copying(true);
    struct ph_lead_pinned *pinned = ph_lead_pin(bytes, stream);
    struct kept *kept = new_kept(question, occasion, pinned->bytes, bytes, dtype);
    kept->pinned = pinned;
    if (PH_REAL(cudaMemcpyAsync)(pinned->bytes, device, bytes, COPY_DEFAULT, stream) != 0)
        ph_die("the leader cannot read a result back: the job's own earlier error");
    when_there(kept, stream);
    ph_lead_copying(false);
    ph_host_resume();
}
