"""Descriptions of one's own cluster from measurements on it: nccl-tests, and the speed of its CPUs."""
