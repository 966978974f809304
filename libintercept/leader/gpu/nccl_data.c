/* nccl_data.c - the bytes of communicator operations on a real GPU, which only this rank has.
 *
 * Why it exists: the leader's communicators are simulated like all others (nccl.c), but its kernels
 * compute on real memory. Small operations really exchange data: the send buffer is read back and
 * sent with the message. The result is requested at once; a host function lets the stream wait for
 * it and puts it into the receive buffer, while the host goes on. Large operations become local
 * copies that keep memory filled with plausible numbers: a gather repeats our own shard, a scatter
 * takes our own part, and data of other ranks is random (random.c). It is never zero, because zeros
 * make matrix products faster. Rule: all GPU work here is the simulator's own (ph_lead_copying),
 * and a host function makes no CUDA call. */
#include "nccl/operation_bytes.h"
#include "base/log.h"
#include "base/memory.h"
#include "leader/gpu/random.h"
#include "leader/leader.h"
#include "leader/measure/gpu_load.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPY_DEFAULT = 4, LOOK_MS = 500 };

int cudaMemcpyAsync(void *, const void *, size_t, int, void *), cudaStreamSynchronize(void *);
int cudaLaunchHostFunc(void *, void (*)(void *), void *), cudaMalloc(void **, size_t),
    cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int);

static void must(int error, const char *what)
{
    if (error)
        ph_die("the leader's simulated NCCL could not %s (CUDA error %d): the job's own earlier "
               "error, or this machine's",
               what, error);
}

static void copy(void *to, const void *from, size_t bytes, void *stream)
{
    if (to == from || !bytes) return;
    must(PH_REAL(cudaMemcpyAsync)(to, from, bytes, COPY_DEFAULT, stream),
         "copy within the GPU's memory");
    ph_gpu_load_copied(stream, bytes);
}

/* ---- small operations ---- */
struct result {
    struct ph_lead_pinned *pinned;
    size_t bytes;
    uint64_t request; /* the FETCH */
    uint64_t issued;  /* ph_gpu_load_issued at the time of the request */
};
static _Atomic int awaited;

int ph_lead_awaited(void) { return atomic_load_explicit(&awaited, memory_order_relaxed); }

/* On CUDA's own thread, in the order of the stream. */
static void receive(void *data)
{
    struct result *result = data;
    struct ph_reply reply;
    size_t got = 0;
    ph_gpu_load_receiving();
    /* Waits as long as the run lives, as NCCL's kernel would. When the process ends, nobody reads
     * the result. */
    bool came = false;
    while (!came && !ph_lead_ending()) came = ph_wait(result->request, &reply, LOOK_MS);
    if (came) {
        const unsigned char *bytes = ph_read_bytes(&reply, &got);
        if (got > result->bytes) got = result->bytes;
        if (got) memcpy(result->pinned->bytes, bytes, got);
        ph_reply_free(&reply);
    }
    /* members that sent nothing count as zeros */
    memset(result->pinned->bytes + got, 0, result->bytes - got);
    ph_gpu_load_received(result->issued);
    atomic_fetch_sub(&awaited, 1);
}

static void delivered(void *data)
{
    struct result *result = data;
    ph_lead_unpin(result->pinned);
    free(result);
}

/* An emulated GPU below us runs host functions concurrently with its streams, not in their order.
 * Then the host waits as well. */
bool ph_lead_keeps_order(void)
{
    static _Atomic int answer; /* 1: no, 2: yes */
    if (!answer)
        answer = ph_real_maybe("phantora_elapsed_ns") &&
                         !ph_real_maybe("phantora_host_functions_in_order")
                     ? 1
                     : 2;
    return answer == 2;
}

static void fetch(const struct ph_operation *op, uint64_t vertex, uint32_t index)
{
    struct ph_pack body = {0};
    struct result *result = calloc(1, sizeof *result);
    if (!result) ph_die("out of host memory");
    result->pinned = ph_lead_pin(op->recv_bytes, op->stream);
    result->bytes = op->recv_bytes;
    result->request = ph_request_id();
    ph_pack_uint(&body, result->request);
    ph_pack_uint(&body, atomic_load_explicit(&ph_stats()->clock_ns, memory_order_relaxed));
    ph_pack_uint(&body, vertex);
    ph_pack_uint(&body, index);
    atomic_fetch_add(&awaited, 1);
    /* while a stream waits for other ranks, only the job's own calls may wait for the GPU */
    ph_gpu_load_stop();
    result->issued = ph_gpu_load_issued();
    ph_send(PH_MESSAGE_FETCH, &body, 4);
    ph_pack_free(&body);
    if (ph_lead_keeps_order())
        must(PH_REAL(cudaLaunchHostFunc)(op->stream, receive, result), "queue a host function");
    else
        ph_lead_settle(op->stream), receive(result);
    copy(op->recv, result->pinned->bytes, op->recv_bytes, op->stream);
    must(PH_REAL(cudaLaunchHostFunc)(op->stream, delivered, result), "queue a host function");
}

static void *read_back(const void *from, size_t bytes, void *stream)
{
    void *host = malloc(bytes);
    if (!host) ph_die("out of host memory for a send buffer of %zu bytes", bytes);
    ph_lead_settle(stream);
    must(PH_REAL(cudaMemcpyAsync)(host, from, bytes, COPY_DEFAULT, stream), "read a send buffer");
    must(PH_REAL(cudaStreamSynchronize)(stream), "wait for a stream");
    return host;
}

void ph_nccl_payload(struct ph_pack *pack, const struct ph_operation *op)
{
    if (!op->send || !op->send_bytes || !ph_nccl_carries(op)) {
        ph_pack_nil(pack);
        return;
    }
    ph_lead_copying(true);
    void *bytes = read_back(op->send, op->send_bytes, op->stream);
    ph_lead_copying(false);
    if (ph_nccl_premultiplies(op)) ph_nccl_premultiply(op, bytes);
    if (ph_all_zero(bytes, op->send_bytes))
        ph_pack_nil(pack); /* as a simulated rank does */
    else
        ph_pack_bin(pack, bytes, op->send_bytes);
    free(bytes);
}

/* ---- large operations ---- */
static void repeat(unsigned char *to, const void *from, size_t bytes, int times, void *stream)
{
    for (int i = 0; i < times; i++) copy(to + (size_t)i * bytes, from, bytes, stream);
}

static void fill_randomly(
    const struct ph_operation *op) /* data that only another rank could send */
{
    ph_random_fill(op->recv, op->recv_bytes, op->dtype, op->stream);
}

static void move_locally(const struct ph_operation *op)
{
    unsigned char *to = op->recv;
    const unsigned char *from = op->send;
    switch (op->kind) {
    case PH_COLLECTIVE_ALL_REDUCE:
    case PH_COLLECTIVE_REDUCE: /* at its root */
    case PH_COLLECTIVE_ALL_TO_ALL: copy(to, from, op->recv_bytes, op->stream); break;
    case PH_COLLECTIVE_ALL_GATHER:
    case PH_COLLECTIVE_GATHER: /* at its root; in place, our shard is one of the parts */
        repeat(to, from, op->bytes, op->comm->size, op->stream);
        break;
    case PH_COLLECTIVE_REDUCE_SCATTER:
        copy(to, from + (size_t)op->comm->rank * op->bytes, op->bytes, op->stream);
        break;
    case PH_COLLECTIVE_SCATTER:
        if (from)
            copy(to, from + (size_t)op->comm->rank * op->bytes, op->bytes, op->stream);
        else
            fill_randomly(op);
        break;
    case PH_COLLECTIVE_BROADCAST:
        if (from)
            copy(to, from, op->bytes, op->stream);
        else
            fill_randomly(op);
        break;
    case PH_COLLECTIVE_RECV: fill_randomly(op); break;
    default: break; /* a send brings no data */
    }
}

/* Simulated ranks issue a captured operation at each launch of its graph. A leader's graphs are
 * launched by the real libraries, which know nothing of the communication. Other ranks would wait
 * for the operation for ever, or match it with our next one. */
const char *ph_nccl_refused(const struct ph_operation *op)
{
    static const char *const names[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast",
                                        "Reduce",    "AlltoAll",  "Gather",        "Scatter",
                                        "Send",      "Recv"};
    static char line[512];
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    const char *rank = getenv("RANK");
    if (!ph_lead_capturing(op->stream)) return NULL;
    pthread_mutex_lock(&once);
    if (!*line)
        snprintf(line, sizeof line,
                 "nccl%s of %zu bytes over %d ranks is refused: rank %s leads on a real GPU and is "
                 "capturing a CUDA graph, whose launches would not "
                 "meet the other ranks' communication; run with --leaders none, or keep "
                 "communication out of graphs",
                 names[op->kind], op->bytes, op->comm->size, rank ? rank : "?");
    pthread_mutex_unlock(&once);
    ph_warn("%s", line);
    return line;
}

/* What a leader sends, its GPU has computed. */
bool ph_nccl_undefined(const struct ph_operation *op)
{
    (void)op;
    return false;
}

void ph_nccl_result(const struct ph_operation *op, uint64_t vertex, uint32_t index)
{
    if (!ph_nccl_receives(op)) return;
    ph_host_pause();
    ph_lead_copying(true);
    if (ph_nccl_carries(op))
        fetch(op, vertex, index);
    else
        move_locally(op);
    ph_lead_copying(false);
    ph_host_resume();
}

bool ph_nccl_scalar(void *value, const void *scalar, size_t bytes, bool on_device)
{
    if (on_device) return PH_REAL(cudaMemcpy)(value, scalar, bytes, COPY_DEFAULT) == 0;
    memcpy(value, scalar, bytes);
    return true;
}

void *ph_nccl_alloc(size_t bytes)
{
    void *pointer = NULL;
    return PH_REAL(cudaMalloc)(&pointer, bytes) == 0 ? pointer : NULL;
}

bool ph_nccl_free(void *pointer) { return PH_REAL(cudaFree)(pointer) == 0; }
