/* base/host_calls.h - classes of calls that take host time.
 *
 * Why it exists: what a call costs the host is known by class, and the job's own time before it is
 * recorded by class and place (time/host_model.c). */
#ifndef PH_HOST_CALLS_H
#define PH_HOST_CALLS_H

enum ph_call {
    PH_CALL_LAUNCH, /* a kernel */
    PH_CALL_GEMM,   /* a cuBLAS call */
    PH_CALL_DNN,    /* a cuDNN call, and any other library's */
    PH_CALL_COMM,   /* a collective, or a group of them */
    PH_CALL_COPY,
    PH_CALL_MEMSET,
    PH_CALL_RECORD, /* of an event */
    PH_CALL_WAIT,   /* of a stream for an event */
    PH_CALL_SYNC,   /* of the host */
    PH_CALL_QUERY,  /* of an event or a stream */
    PH_CALL_MALLOC, /* of segments, pinned memory, library handles, modules */
    PH_CALL_FREE,
    PH_CALL_CLOCK, /* the job reads a clock: no call of CUDA's, costs nothing */
    PH_CALL_MEET,  /* a communicator is made: its time is not modelled */
    PH_CALLS
};
/* "launch", "gemm", ... as in device.conf, HOST messages and the database */
const char *ph_call_name(enum ph_call call);
#endif
