/* base/log.h - diagnostics for the user: refused calls, warnings, failures of the interceptor.
 *
 * Why it exists: no wrong result may be silent. Each diagnostic is one line on stderr, written
 * once. The connection to the hub registers as a second reader, so the report lists the
 * diagnostics too. */
#ifndef PH_LOG_H
#define PH_LOG_H
#include "base/api.h"

/* Once per function: a line on stderr and in the report. */
void ph_unsupported(const char *function);
/* Something that the user must check before trusting the result. */
void ph_warn(const char *format, ...) PH_PRINTF(1, 2);
/* The same, but only the first process of a run writes the line: for what all ranks would say. */
void ph_warn_for_run(const char *format, ...) PH_PRINTF(1, 2);
/* A failure of the interceptor, not of the job: one line, exit status 70. */
_Noreturn void ph_die(const char *format, ...) PH_PRINTF(1, 2);
/* The same without a line: somebody else has said why. */
_Noreturn void ph_end(void);

/* Sets the second reader of diagnostics; NULL: none. `kind` is "warning" or "unsupported". */
typedef void ph_diagnostic_reader(const char *kind, const char *text);
void ph_log_to(ph_diagnostic_reader *reader);
#endif
