"""A Llama 8B of transformers that is built on the CPU, trained for two steps under FSDP2, saved and loaded again.

    phantora-ns torchrun --nproc-per-node 8 bench/ranks/save_8b.py --how dcp|full [--folder FOLDER]

Why it exists: most people's code builds, saves and loads so, and none of it may take the memory or the disk that it
takes on a cluster (docs/host-tensors.md). dcp: model and optimizer as a distributed checkpoint; full: rank 0 saves the
whole model by torch.save, and maps the file to load it. Needs transformers.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, LlamaConfig

LLAMA_8B = dict(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, max_position_embeddings=8192,
)  # fmt: skip
FULL = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_ONE = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def build():
    """The model, born on the CPU in fp32, sharded, on the GPU."""
    model = AutoModelForCausalLM.from_config(LlamaConfig(**LLAMA_8B), dtype=torch.float32)
    model.gradient_checkpointing_enable()
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=precision)
    return fully_shard(model, mp_policy=precision).cuda()


def save(how, model, optimizer, folder):
    if how == "dcp":
        parts = states.get_state_dict(model, optimizer)
        dcp.save(dict(zip(("model", "optimizer"), parts, strict=True)), checkpoint_id=folder)
        return
    whole = states.get_model_state_dict(model, options=FULL)
    if dist.get_rank() == 0:
        torch.save(whole, Path(folder, "model.pt"))
    dist.barrier()


def load(how, model, optimizer, folder):
    if how == "dcp":
        parts = dict(
            zip(("model", "optimizer"), states.get_state_dict(model, optimizer), strict=True)
        )
        dcp.load(parts, checkpoint_id=folder)
        states.set_state_dict(
            model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
        )
        return
    whole = {}
    if dist.get_rank() == 0:
        whole = torch.load(Path(folder, "model.pt"), mmap=True, map_location="cpu")
    states.set_model_state_dict(model, whole, options=FROM_ONE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=("dcp", "full"), required=True)
    parser.add_argument("--folder", help="default: one of its own, which is removed")
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    first = dist.get_rank() == 0
    own = tempfile.TemporaryDirectory() if first and not options.folder else None
    where = [options.folder or (own and own.name)]
    dist.broadcast_object_list(where)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(1, 3):
        tokens = torch.randint(LLAMA_8B["vocab_size"], (1, 2048), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if first:
            print(
                f"step {step}: peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", flush=True
            )
    save(options.how, model, optimizer, where[0])
    dist.barrier()
    if first:
        files = [path.stat() for path in Path(where[0]).rglob("*") if path.is_file()]
        size, disk = sum(one.st_size for one in files), 512 * sum(one.st_blocks for one in files)
        print(f"saved: {size / 1e9:.1f} GB, of it on disk {disk / 1e6:.1f} MB", flush=True)
    load(options.how, model, optimizer, where[0])
    dist.barrier()
    if first:
        print("loaded", flush=True)
    if own:
        own.cleanup()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
