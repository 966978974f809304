/* base/host_calls.c - the names of the classes of calls. */
#include "base/host_calls.h"

static const char *const names[PH_CALLS] = {
    [PH_CALL_LAUNCH] = "launch", [PH_CALL_GEMM] = "gemm",      [PH_CALL_DNN] = "dnn",
    [PH_CALL_COMM] = "comm",     [PH_CALL_COPY] = "copy",      [PH_CALL_MEMSET] = "memset",
    [PH_CALL_RECORD] = "record", [PH_CALL_WAIT] = "wait",      [PH_CALL_SYNC] = "sync",
    [PH_CALL_QUERY] = "query",   [PH_CALL_MALLOC] = "malloc",  [PH_CALL_FREE] = "free",
    [PH_CALL_CLOCK] = "clock",   [PH_CALL_MEET] = "comm_init",
};

const char *ph_call_name(enum ph_call call) { return names[call]; }
