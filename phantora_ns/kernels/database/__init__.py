"""Kernel-time databases: SQLite files of measured durations and host times, one GPU model each
(docs/kernels-database.md).

`schema.py` defines the file, `records.py` what is in it, `writer.py` and `recording.py` write it,
`database.py` reads one file and `databases.py` finds and merges several.
"""
