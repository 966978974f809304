"""Two ranks under torchrun: one deletes files, the other one opens them. Writes what the other one saw."""

import json
import os
import select
import sys
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(sys.argv[1])
AHEAD = sys.argv[2] == "none"
"""Without host time a rank can be ahead of others that stand still. With it, watchdogs wait for them."""
RANK = int(os.environ["RANK"])
HOW = {
    "unlink": os.unlink,
    "remove": os.remove,
    "unlinkat": lambda path: os.unlink(path.name, dir_fd=os.open(path.parent, os.O_RDONLY)),
}


def stand_still(until):
    """Passes real time, but no simulated time: two seconds more than it takes until a file is there, if one
    is given."""
    while until and not until.exists():
        select.select([], [], [], 0.05)
    select.select([], [], [], 2)


def compute():
    """Passes simulated time."""
    torch.cuda._sleep(100_000_000)
    torch.cuda.synchronize()


def read(path):
    return path.read_text() if path.exists() else None


torch.cuda.set_device(RANK)
dist.init_process_group("nccl")
seen = {}
for name, delete in HOW.items():
    shared, young, lock, done = (
        FOLDER / f"{name}-{kind}" for kind in ("shared", "young", "lock", "done")
    )
    if RANK == 0:
        shared.write_text("weights")
        lock.touch()
    dist.barrier()
    if RANK == 0:
        compute()
        select.select([], [], [], 0.05)  # file systems date files by a coarse clock
        young.write_text("scratch")
        delete(young)
        delete(lock)
        done.touch()
        delete(shared)
    else:
        stand_still(done if AHEAD else None)
        seen[name] = {
            "lock": AHEAD and lock.exists(),
            "young": AHEAD and young.exists(),
            "shared": read(shared),
        }
    dist.barrier()
    if RANK == 1:
        seen[name]["after"] = shared.exists()
if RANK == 1:
    print("SEEN " + json.dumps(seen), flush=True)
dist.destroy_process_group()
