"""Cluster and GPU model files: parse, validate, describe.

Why it exists: files that a person writes become a frozen description (`model/`), or one message that
says what to change: "FILE: key: what is wrong; what to do". Nothing in this package looks at the
machine that it runs on.
"""

from phantora_ns.config.clusters import (
    default_cluster,
    list_clusters,
    load_cluster,
    topologies_dir,
)
from phantora_ns.config.gpus import list_gpus, load_gpu
from phantora_ns.config.nccl import NVLS_KEYS, PAIR_KEYS, PROTOCOL_KEYS
from phantora_ns.config.toml_table import ConfigError

__all__ = [
    "NVLS_KEYS",
    "PAIR_KEYS",
    "PROTOCOL_KEYS",
    "ConfigError",
    "default_cluster",
    "list_clusters",
    "list_gpus",
    "load_cluster",
    "load_gpu",
    "topologies_dir",
]
