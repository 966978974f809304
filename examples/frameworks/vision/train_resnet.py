"""ResNet-50 on synthetic images with DistributedDataParallel: ordinary torchvision, started with
torchrun.

    phantora-ns torchrun --nproc-per-node 8 train_resnet.py --precision bf16 --channels-last
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch.nn.parallel import DistributedDataParallel


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=64, help="images per GPU")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--sync-batch-norm", action="store_true")
    parser.add_argument("--benchmark", action="store_true", help="let cuDNN time its algorithms")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def main():
    options = parse()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = options.benchmark
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = torchvision.models.get_model(options.model, num_classes=options.classes).to(
        device, memory_format=layout
    )
    if options.sync_batch_norm:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(enabled=options.precision == "fp16")
    compute = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[
        options.precision
    ]
    images = torchvision.datasets.FakeData(
        options.steps * options.batch * dist.get_world_size(),
        (3, options.image, options.image),
        options.classes,
        torchvision.transforms.ToTensor(),
    )
    loader = torch.utils.data.DataLoader(
        images,
        options.batch,
        num_workers=options.workers,
        pin_memory=True,
        drop_last=True,
        sampler=torch.utils.data.DistributedSampler(images),
    )
    last = time.time()
    for step, (image, label) in enumerate(loader, 1):
        image = image.to(device, memory_format=layout, non_blocking=True)
        label = label.to(device, non_blocking=True)
        with torch.autocast("cuda", compute, enabled=compute != torch.float32):
            loss = F.cross_entropy(model(image), label)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        text = f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}"
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
