"""From a command line to running sandboxes and back to an exit code.

The stages, each of which imports only those before it: `command/` reads what the user typed,
`machine/` prepares this machine's GPUs, environment and sandbox, `record/` chooses leaders and
recorded host times and values, and `run/` runs one job. `profiling.py` and `doctor.py` are commands
over them.
"""
