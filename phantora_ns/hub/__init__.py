"""The hub: the ZeroMQ server that every process of the job talks to. It does I/O and keeps the
registry; sim/ computes the times."""
