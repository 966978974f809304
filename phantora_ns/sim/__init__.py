"""Pure simulation: integer nanoseconds in, integer nanoseconds out, no I/O.

Why it exists: what the rest of the project calls the timeline is computed here and nowhere else.
Nothing in this package imports the hub, the launcher or the report, so that every part can be
tested alone.
"""
