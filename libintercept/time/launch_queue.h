/* time/launch_queue.h - positions in streams, the driver's launch queue, and the host's clock where
 * it waits in that queue. ph_lock is held. */
#ifndef PH_LAUNCH_QUEUE_H
#define PH_LAUNCH_QUEUE_H
#include "time/expression.h"
#include <stdint.h>

struct ph_stream;
struct ph_stream_position { /* in the order of a stream's work; stream 0: none */
    uint64_t stream;        /* id */
    int64_t position;       /* of what precedes (time/launch_queue.c) */
    uint64_t queue_slots;   /* issued before; UINT64_MAX: not known */
};

void ph_host_anchor(uint64_t vertex, uint64_t time); /* the hub has told where the host is */
/* the host waited until `time`, if that is later */
void ph_host_reach(uint64_t time);
void ph_host_moment(uint64_t *vertex, int64_t *offset);
uint64_t ph_host_oldest(uint64_t otherwise); /* the lowest vertex that the host's clock names */
/* 1: it is over by now, 0: it is not, -1: not known here */
int ph_host_compare(const struct ph_stream_position *position);
/* Before a call takes `queue_slots` (struct ph_time) of the stream: the host waits until there is
 * room in its queue. After: they are in it. */
void ph_queue_wait_locked(struct ph_stream *stream, uint32_t queue_slots);
void ph_queue_push_locked(struct ph_stream *stream, uint32_t queue_slots, uint64_t duration_ns,
                          uint64_t contention_ns);
/* as ph_expr_add_host, where the stream's work goes on */
void ph_queue_add_host(struct ph_stream *stream, int64_t latency);
/* work was put on it */
void ph_queue_moved(struct ph_stream *stream, uint64_t duration_ns, uint64_t gap_ns);
void ph_queue_free(struct ph_stream *stream);
struct ph_stream_position ph_queue_position(const struct ph_stream *stream);
/* it waits for what has that position */
void ph_queue_after(struct ph_stream *stream, const struct ph_stream_position *position);
/* as ph_expr_oldest, of its works unfinished at `now` */
uint64_t ph_queue_oldest(struct ph_stream *stream, uint64_t now, uint64_t oldest);
/* the host's clock plus `latency`, as terms of `expr` */
void ph_expr_add_host(struct ph_expr *expr, int64_t latency);
#endif
