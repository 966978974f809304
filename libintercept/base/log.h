/* base/log.h - what the user must know: refused calls, warnings, our own failures.
 *
 * Why it exists: nothing may be silently wrong. Each diagnostic is one line on stderr, once. The
 * connection to the hub adds itself as a second reader, so that the report has them as well. */
#ifndef PH_LOG_H
#define PH_LOG_H
#include "base/api.h"

/* once per function: a line on stderr, and in the report */
void ph_unsupported(const char *function);
/* "check this before you trust the result" */
void ph_warn(const char *format, ...) PH_PRINTF(1, 2);
/* our own failure, not the job's: one line, exit 70 */
_Noreturn void ph_die(const char *format, ...) PH_PRINTF(1, 2);

/* Who else is told of diagnostics, from now on; NULL: nobody. `kind` is "warning" or
 * "unsupported". */
typedef void ph_diagnostic_reader(const char *kind, const char *text);
void ph_log_to(ph_diagnostic_reader *reader);
#endif
