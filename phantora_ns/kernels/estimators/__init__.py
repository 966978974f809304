"""Estimators: durations of kernels and library calls that were never measured.

Each kind of work has its own file.
"""
