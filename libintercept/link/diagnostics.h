/* link/diagnostics.h - diagnostics as messages to the hub (base/log.h makes them). */
#ifndef PH_DIAGNOSTICS_H
#define PH_DIAGNOSTICS_H

/* a ph_diagnostic_reader; ph_hub_connect registers it */
void ph_send_diagnostic(const char *kind, const char *text);
#endif
