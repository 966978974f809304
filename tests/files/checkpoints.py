"""Saves a state of zeros on the GPU, as a simulated model's is, in three ways, and loads it again:
`checkpoints.py FOLDER`."""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")
folder = Path(sys.argv[1])
state = {"large": torch.zeros(64 << 20, device="cuda"), "few": torch.arange(1000, device="cuda")}
torch.save(state, folder / "by name")
with open(folder / "by file", "wb") as file:
    torch.save(state, file)
dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
again = {name: torch.ones_like(tensor, device="cpu") for name, tensor in state.items()}
dcp.load(again, checkpoint_id=folder / "dcp", no_dist=True)
for read in (torch.load(folder / "by name", "cpu"), torch.load(folder / "by file", "cpu"), again):
    assert not read["large"].any() and torch.equal(read["few"], torch.arange(1000))
print("OK")
