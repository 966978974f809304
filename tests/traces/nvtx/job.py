"""Marks phases by torch.cuda.nvtx and by a C library (argument 1), and prints what the latter got."""

import ctypes
import sys

import torch

weight = torch.ones(512, 512, device="cuda")
with torch.cuda.nvtx.range("python"):
    weight = weight @ weight
    with torch.cuda.nvtx.range("nested"):
        weight = weight + 1
torch.cuda.nvtx.mark("a mark")
levels = (ctypes.c_int * 7)()
ctypes.CDLL(sys.argv[1]).ranges(levels)
torch.cuda.synchronize()
print("LEVELS", *levels, flush=True)
