"""A diffusion U-Net learns to predict noise (DDPM) with DistributedDataParallel: ordinary
diffusers, started with torchrun.

    phantora-ns torchrun --nproc-per-node 8 train_unet.py --precision bf16 --channels-last
    phantora-ns torchrun --nproc-per-node 8 train_unet.py --conditional --precision fp16
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DConditionModel, UNet2DModel
from torch.nn.parallel import DistributedDataParallel


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--conditional",
        action="store_true",
        help="UNet2DConditionModel, on the embedding of a text",
    )
    parser.add_argument("--batch", type=int, default=16, help="images per GPU")
    parser.add_argument("--image", type=int, default=64)
    parser.add_argument("--channels", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--max-norm", type=float, default=1.0)
    return parser.parse_args()


def make_model(options):
    deep = len(options.channels) - 1  # attention in all but the outermost blocks
    shape = dict(sample_size=options.image, block_out_channels=options.channels, layers_per_block=2)
    if options.conditional:
        return UNet2DConditionModel(
            in_channels=4,
            out_channels=4,
            cross_attention_dim=768,
            attention_head_dim=8,
            down_block_types=["DownBlock2D"] + ["CrossAttnDownBlock2D"] * deep,
            up_block_types=["CrossAttnUpBlock2D"] * deep + ["UpBlock2D"],
            **shape,
        )
    return UNet2DModel(
        in_channels=3,
        out_channels=3,
        down_block_types=["DownBlock2D"] + ["AttnDownBlock2D"] * deep,
        up_block_types=["AttnUpBlock2D"] * deep + ["UpBlock2D"],
        **shape,
    )


def main():
    options = parse()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())
    model = make_model(options)
    if options.checkpointing:
        model.enable_gradient_checkpointing()
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = DistributedDataParallel(
        model.to(device, memory_format=layout), device_ids=[device.index]
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(enabled=options.precision == "fp16")
    compute = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[
        options.precision
    ]
    noising = DDPMScheduler(num_train_timesteps=1000)
    condition = ()
    if options.conditional:
        condition = (torch.randn(options.batch, 77, 768, device=device),)
    last = time.time()
    for step in range(1, options.steps + 1):
        clean = torch.randn(
            options.batch, 4 if options.conditional else 3, options.image, options.image
        )
        clean = clean.pin_memory().to(device, memory_format=layout, non_blocking=True)
        noise = torch.randn_like(clean)
        times = torch.randint(noising.config.num_train_timesteps, (options.batch,), device=device)
        noisy = noising.add_noise(clean, noise, times)
        with torch.autocast("cuda", compute, enabled=compute != torch.float32):
            loss = F.mse_loss(model(noisy, times, *condition, return_dict=False)[0].float(), noise)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.max_norm)
        scaler.step(optimizer)
        scaler.update()
        text = f"step {step} loss {loss.item():.4f} norm {norm.item():.4f} scale {scaler.get_scale():g}"
        now = time.time()
        if dist.get_rank() == 0:
            print(
                f"{text} {1e3 * (now - last):.1f} ms "
                f"{options.batch * dist.get_world_size() / (now - last):.0f} images/s "
                f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB",
                flush=True,
            )
        last = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
