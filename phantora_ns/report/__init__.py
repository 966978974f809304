"""What the user is told about a run: the report and its summary.

Both are made after the run, from hub.json and the rank statistics.
"""
