"""Kineto traces of ranks: written from a simulated run's logs, read, and compared.

Writing: `options.py`, `log.py` (what a rank logs), `times.py`, `describe.py`, `collect.py`,
`events.py`, `sort.py`, `writer.py`, `job.py`. Reading: `kineto.py`, `breakdown.py`,
`activity_families.py`, `match.py`, `diff.py`, `diff_text.py`.
"""
