"""Sizes of TorchTitan's models that one GPU trains within its memory: its own, with fewer layers.

Why it exists: between TorchTitan's debug models, which a GPU waits for the host in, and its real
ones, which take a server, it has none. `--experimental.custom_import titan_sizes` (this folder in
PYTHONPATH) adds them, as TorchTitan provides for.
"""

from dataclasses import replace

from torchtitan.models.deepseek_v3 import deepseekv3_args
from torchtitan.models.llama3 import llama3_args
from torchtitan.models.qwen3 import qwen3_args

llama3_args["8B_6_layers"] = replace(llama3_args["8B"], n_layers=6)
deepseekv3_args["16B_3_layers"] = replace(
    deepseekv3_args["16B"], n_layers=3, attn_type="sdpa", attn_mask_type="causal"
)
qwen3_args["30B-A3B_3_layers"] = replace(qwen3_args["30B-A3B"], n_layers=3, max_seq_len=4096)
