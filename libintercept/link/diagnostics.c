/* link/diagnostics.c - sends each diagnostic to the hub, for the report. */
#include "link/diagnostics.h"
#include "link/connection.h"

void ph_send_diagnostic(const char *kind, const char *text)
{
    struct ph_pack body = {0};
    ph_pack_uint(&body, atomic_load_explicit(&ph_stats()->clock_ns, memory_order_relaxed));
    ph_pack_str(&body, kind);
    ph_pack_str(&body, text);
    ph_send(PH_MESSAGE_DIAGNOSTIC, &body, 3);
    ph_pack_free(&body);
}
