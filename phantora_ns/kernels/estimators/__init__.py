"""Estimators: durations of kernels and library calls that no measurement covers. One file per kind
of work."""
