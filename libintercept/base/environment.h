/* base/environment.h - the interceptor's own environment variables. */
#ifndef PH_ENVIRONMENT_H
#define PH_ENVIRONMENT_H

/* NULL when the variable is unset or empty. In a leader, PHANTORA_LEAD_X overrides PHANTORA_X: a
 * leader may run over an emulated GPU, whose interceptor reads the same names (docs/leading.md). */
const char *ph_env(const char *name);
#endif
