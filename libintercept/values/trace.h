/* trace.h - operators for the trace (trace.cpp). */
#ifndef PHANTORA_VALUES_TRACE_H
#define PHANTORA_VALUES_TRACE_H

namespace phantora
{

/* Starts reporting operators and steps if the interceptor wants them. False when torch refuses. */
bool start_trace();

} // namespace phantora
#endif
