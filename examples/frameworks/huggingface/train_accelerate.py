"""A hand-written training loop over accelerate.Accelerator, on a model made from a config object
and random tokens.

The back end comes from `accelerate launch` or its config file. torchrun gives DDP:

    phantora-ns --gpus-per-node 8 accelerate launch \
        --config_file configs/accelerate_fsdp2.yaml train_accelerate.py
    phantora-ns torchrun --nproc-per-node 8 train_accelerate.py --mixed-precision fp16
"""

import argparse
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("llama", "qwen3"), default="llama")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4, help="sequences per GPU")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument(
        "--mixed-precision",
        choices=("no", "bf16", "fp16"),
        help="default: what accelerate is configured for",
    )
    parser.add_argument(
        "--save",
        metavar="FOLDER",
        help="save the state there after the last step, and load it again",
    )
    return parser.parse_args()


def make_model(options):
    kind, config = {
        "llama": (LlamaForCausalLM, LlamaConfig),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config),
    }[options.model]
    return kind(
        config(
            vocab_size=options.vocabulary,
            hidden_size=options.width,
            intermediate_size=4 * options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.width // 64,
            num_key_value_heads=max(1, options.width // 256),
            head_dim=64,
            max_position_embeddings=options.sequence,
        )
    )


def main():
    options = parse()
    accelerator = Accelerator(
        mixed_precision=options.mixed_precision, gradient_accumulation_steps=options.accumulate
    )
    set_seed(1)
    with accelerator.device:  # created on the GPU: the host of each rank holds no copy
        model = make_model(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    count = options.steps * options.accumulate * options.batch * accelerator.num_processes
    tokens = torch.randint(options.vocabulary, (count, options.sequence))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(tokens), options.batch, shuffle=True
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=options.steps)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    step, last, norm = 0, time.time(), None
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            losses = accelerator.gather(loss.detach())
            now = time.time()
            sequences = options.batch * options.accumulate * accelerator.num_processes
            accelerator.print(
                f"step {step} loss {losses.mean().item():.4f} of {losses.numel()} ranks norm {float(norm or 0):.4f} "
                f"{1e3 * (now - last):.1f} ms {sequences * options.sequence / (now - last):.0f} tokens/s "
                f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB",
                flush=True,
            )
            last = now
    if options.save:
        accelerator.save_state(options.save)
        accelerator.wait_for_everyone()  # the main process writes what all are about to read
        accelerator.load_state(options.save)
        accelerator.print("state saved and loaded", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
