"""Frozen descriptions of clusters and GPUs.

Why it exists: the simulator, the kernel models and the hub all read the same facts about the
hardware. Rule: only dataclasses and arithmetic on their own fields. Nothing in this package reads a
file, and it imports no other part of the project. `phantora_ns/config/` makes the descriptions.
"""
