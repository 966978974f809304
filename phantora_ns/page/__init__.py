"""The page of a run: one HTML file that answers what people ask about it (`--html`).

Made after the run from its report, its cluster and the traces of its ranks. Nothing here decides a
time: every number is the report's, or is added up from a trace.
"""
