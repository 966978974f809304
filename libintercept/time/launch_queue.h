/* time/launch_queue.h - stream positions, the driver's launch queue, and the host's clock while the
 * host waits in that queue. ph_lock is held. */
#ifndef PH_LAUNCH_QUEUE_H
#define PH_LAUNCH_QUEUE_H
#include "time/expression.h"
#include <stdint.h>

struct ph_stream;
struct ph_stream_position { /* a point in the order of a stream's work; stream 0: none */
    uint64_t stream;        /* the id of the stream */
    int64_t position;       /* least time that the preceding work takes (time/launch_queue.c) */
    uint64_t queue_slots;   /* queue slots issued before it; UINT64_MAX: unknown */
};

/* the hub has answered where the host is */
void ph_host_anchor(uint64_t vertex, uint64_t time);
/* moves the host's clock to `time`, if that is later */
void ph_host_reach(uint64_t time);
void ph_host_moment(uint64_t *vertex, int64_t *offset);
/* the lowest vertex that the host's clock names, or `otherwise` if that is lower */
uint64_t ph_host_oldest(uint64_t otherwise);
/* 1: the position is reached at the host's clock; 0: it is not; -1: unknown here. `margin`: ns that
 * the position must be beyond what is known of the host; the launch latency, where no call has cost
 * the host time since it launched what it knows its clock by, else 0. */
int ph_host_compare(const struct ph_stream_position *position, int64_t margin);
/* wait: called before a call takes `queue_slots` (see struct ph_time) of the stream; the host waits
 * until its queue has room. push: called after the call; the slots are in the queue. */
void ph_queue_wait_locked(struct ph_stream *stream, uint32_t queue_slots);
void ph_queue_push_locked(struct ph_stream *stream, uint32_t queue_slots, uint64_t duration_ns,
                          uint64_t contention_ns);
/* adds the host's clock plus `latency` to the stream's expression, where its next work starts */
void ph_queue_add_host(struct ph_stream *stream, int64_t latency);
/* work was put on the stream */
void ph_queue_moved(struct ph_stream *stream, uint64_t duration_ns, uint64_t gap_ns);
void ph_queue_free(struct ph_stream *stream);
struct ph_stream_position ph_queue_position(const struct ph_stream *stream);
/* the stream waits for the work at that position */
void ph_queue_after(struct ph_stream *stream, const struct ph_stream_position *position);
/* as ph_expr_oldest, for the stream's calls that are unfinished at `now` */
uint64_t ph_queue_oldest(struct ph_stream *stream, uint64_t now, uint64_t oldest);
/* adds the host's clock plus `latency` to `expr`, as terms */
void ph_expr_add_host(struct ph_expr *expr, int64_t latency);
#endif
