"""Why it exists: TorchTitan 0.3 takes its configuration from Python functions, where 0.2 takes the
TOML files beside this one. These functions change TorchTitan's own configurations where the TOML
files do: small, local assets (make_assets.py), and a few steps.

    phantora-ns torchrun --nproc-per-node 8 -m torchtitan.train \\
        --module examples.frameworks.torchtitan.configs --config debug

`debug` and `llama3_8b` attend by flex_attention, TorchTitan's default, which is compiled and tuned
at the first use. The others attend by varlen_attn, which compiles nothing. On Hopper and newer GPUs
that needs FlashAttention 3, which no package index has; so choose an A100 for them (--cluster
a100-1x8).
"""

from torchtitan.models import deepseek_v3, llama3, qwen3
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel
from torchtitan.models.llama3 import config_registry
from torchtitan.models.qwen3.config_registry import qwen3_moe_debug
from torchtitan.trainer import Trainer


def local(config: Trainer.Config, batch: int, length: int) -> Trainer.Config:
    config.dump_folder = "outputs/torchtitan"
    config.hf_assets_path = "assets/tokenizer"
    config.dataloader.dataset = "c4_test"
    config.dataloader.dataset_path = "assets/c4_test"
    config.training.local_batch_size = batch
    config.training.seq_len = length
    config.training.steps = 4
    config.lr_scheduler.warmup_steps = 2
    config.metrics.log_freq = 1
    config.metrics.disable_color_printing = True
    config.metrics.enable_tensorboard = False
    config.profiler.enable_profiling = False
    return config


def varlen(config: Trainer.Config, model) -> Trainer.Config:
    flavor = config.model_spec.flavor
    config.model_spec = model.model_registry(flavor, attn_backend="varlen")
    config.training.disable_cuda_graphs = True  # varlen_attn waits for the GPU in each step
    return local(config, batch=2, length=512)


def debug() -> Trainer.Config:
    """A Llama 3 of 6 layers."""
    return local(config_registry.llama3_debugmodel(), batch=2, length=512)


def llama3_8b() -> Trainer.Config:
    """Llama 3 8B as TorchTitan's own configuration trains it, on a server of 8 H200."""
    return local(config_registry.llama3_8b(), batch=1, length=8192)


def debug_varlen() -> Trainer.Config:
    return varlen(config_registry.llama3_debugmodel(), llama3)


def deepseek_v3_varlen() -> Trainer.Config:
    return varlen(deepseek_v3_debugmodel(), deepseek_v3)


def qwen3_moe_varlen() -> Trainer.Config:
    return varlen(qwen3_moe_debug(), qwen3)
