"""Asks cuDNN on a real GPU how much memory its batch normalisation wants.

    python bench/kernels/norm_sizes.py OUT.jsonl.xz

Why it exists: NVIDIA's library answers only for a handle on a GPU. So the simulator has a law
(libintercept/simulated/math/cudnn_legacy.c), and the law is held against these answers. No kernel runs. Each
line has [mode, data type, channels last, N, C, H, W, forward workspace, backward workspace, reserve], with
cuDNN's numbers for mode and data type, and sizes in bytes; a size that cuDNN refused is null.
"""

import ctypes
import json
import lzma
import sys
from itertools import product
from pathlib import Path

import torch

MODES = (1, 2)  # spatial, spatial persistent
TYPES = (0, 2, 9)  # float, half, bfloat16
FLOAT = 0
BATCHES = (1, 2, 3, 16, 48, 96, 128)
CHANNELS = (*range(1, 21), 22, 24, 30, 32, 40, 50, 63, 64, 65, 66, 68, 72, 96, 100, 127, 128, 130)
CHANNELS += (160, 255, 258, 320, 511, 512, 1000, 1001, 1024, 2048)
SIZES = ((1, 1), (4, 4), (7, 7), (14, 14), (15, 20), (56, 56), (61, 61), (112, 112), (224, 224))


def descriptor(
    library: ctypes.CDLL, kind: int, sizes: tuple[int, ...], last: bool
) -> ctypes.c_void_p:
    """A tensor of N, C, H, W, contiguous or channels last."""
    _, c, h, w = sizes
    strides = (h * w * c, 1, w * c, c) if last else (c * h * w, h * w, w, 1)
    made = ctypes.c_void_p()
    four = ctypes.c_int * 4
    assert library.cudnnCreateTensorDescriptor(ctypes.byref(made)) == 0
    assert library.cudnnSetTensorNdDescriptor(made, kind, 4, four(*sizes), four(*strides)) == 0
    return made


def ask(
    library: ctypes.CDLL,
    handle: ctypes.c_void_p,
    mode: int,
    kind: int,
    last: bool,
    sizes: tuple[int, ...],
) -> list[int | None]:
    """Workspace of the forward and of the backward pass, and the reserve between them."""
    x = descriptor(library, kind, sizes, last)
    parameters = descriptor(library, FLOAT, (1, sizes[1], 1, 1), False)
    found: list[int | None] = []
    none = ctypes.c_void_p()
    for call, arguments in (
        (
            library.cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize,
            (x, none, x, parameters, none),
        ),
        (
            library.cudnnGetBatchNormalizationBackwardExWorkspaceSize,
            (x, none, x, none, x, parameters, none),
        ),
        (library.cudnnGetBatchNormalizationTrainingExReserveSpaceSize, (none, x)),
    ):
        size = ctypes.c_size_t()
        status = call(handle, mode, 0, *arguments, ctypes.byref(size))
        found.append(size.value if status == 0 else None)
    for made in (x, parameters):
        library.cudnnDestroyTensorDescriptor(made)
    return found


def main() -> int:
    torch.zeros(1, device="cuda")
    print(f"cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}", flush=True)
    library = ctypes.CDLL("libcudnn.so.9")
    handle = ctypes.c_void_p()
    assert library.cudnnCreate(ctypes.byref(handle)) == 0
    lines = []
    for mode, kind, last, n, c, (h, w) in product(
        MODES, TYPES, (False, True), BATCHES, CHANNELS, SIZES
    ):
        if n * c * h * w < 2**31:
            lines.append(
                [
                    mode,
                    kind,
                    int(last),
                    n,
                    c,
                    h,
                    w,
                    *ask(library, handle, mode, kind, last, (n, c, h, w)),
                ]
            )
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    Path(sys.argv[1]).write_bytes(lzma.compress(text.encode()))
    print(f"{len(lines)} sizes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
