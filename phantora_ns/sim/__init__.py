"""Pure simulation: integer nanoseconds in, integer nanoseconds out, no I/O.

Why it exists: only this package computes the times of the timeline. Nothing in it imports the hub,
the launcher or the report, so that every part can be tested alone.
"""
