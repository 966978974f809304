"""Measures, on a real GPU, how many bytes of workspace cuDNN asks PyTorch for.

Why it exists: PyTorch allocates exactly what cuDNN's execution plan asks for, and we promise a real
GPU's peak memory to the byte. So libintercept/simulated/math/cudnn_real.c needs cuDNN's own
figures, which are published nowhere. The caching allocator's history lists every allocation of a
call with the requested size (before rounding). An allocation that is neither an output of the call
nor a copy made by PyTorch is the workspace.

Needs only torch (and its CUDA wheels) and a GPU. Prints one JSON object per line: first the
machine, then one per case:

    python cudnn_workspace.py [--grid star|full] [--only sdpa|conv] [--seconds 300] >OUT.jsonl

`allocations`: requested bytes in the order of the calls; `outputs`: bytes of the tensors that the
call returned; `workspace`: the allocations left once each output has taken one of its size (a list:
[] no workspace, [n] the usual).
"""

import argparse
import itertools
import json
import sys
import time

import torch

ATEN = torch.ops.aten

# (batch, query heads, key/value heads, sequence of queries, of keys, head dimension, causal)
SDPA_BASE = {"b": 1, "hq": 32, "hkv": 8, "sq": 4096, "skv": 4096, "d": 128, "causal": True}
SDPA_AXES = {
    "b": [1, 2, 3, 4],
    "hq": [8, 16, 24, 32, 40],
    "hkv": [1, 2, 4, 8, 32],
    "s": [256, 320, 384, 500, 512, 1000, 1024, 1025, 2048, 3000, 4096, 6000, 8192, 12288, 16384],
    "d": [32, 64, 72, 96, 128],
    "causal": [True, False],
}
# ResNet-50, the 53 convolutions without repetition: (in, out, kernel, stride, padding, input height
# = width)
RESNET50 = [
    (3, 64, 7, 2, 3, 224),
    (64, 64, 1, 1, 0, 56),
    (64, 64, 3, 1, 1, 56),
    (64, 256, 1, 1, 0, 56),
    (256, 64, 1, 1, 0, 56),
    (256, 128, 1, 1, 0, 56),
    (128, 128, 3, 2, 1, 56),
    (128, 512, 1, 1, 0, 28),
    (256, 512, 1, 2, 0, 56),
    (512, 128, 1, 1, 0, 28),
    (128, 128, 3, 1, 1, 28),
    (512, 256, 1, 1, 0, 28),
    (256, 256, 3, 2, 1, 28),
    (256, 1024, 1, 1, 0, 14),
    (512, 1024, 1, 2, 0, 28),
    (1024, 256, 1, 1, 0, 14),
    (256, 256, 3, 1, 1, 14),
    (1024, 512, 1, 1, 0, 14),
    (512, 512, 3, 2, 1, 14),
    (512, 2048, 1, 1, 0, 7),
    (1024, 2048, 1, 2, 0, 14),
    (2048, 512, 1, 1, 0, 7),
    (512, 512, 3, 1, 1, 7),
]


def trace_length():
    """Number of entries that the allocator's history of device 0 holds now."""
    return len(torch.cuda.memory._snapshot()["device_traces"][0])


def allocations_of(call):
    """Runs `call` and returns (its tensors, requested bytes of each allocation it made, in
    order)."""
    torch.cuda.memory._record_memory_history(
        "all", context=None, max_entries=1_000_000, clear_history=True
    )
    start = trace_length()
    results = call()
    torch.cuda.synchronize()
    entries = torch.cuda.memory._snapshot()["device_traces"][0][start:]
    torch.cuda.memory._record_memory_history(None)
    tensors = [t for t in results if isinstance(t, torch.Tensor) and t.is_cuda]
    return tensors, [e["size"] for e in entries if e["action"] == "alloc"]


def storage_bytes(tensor):
    """Bytes of the tensor's own storage (what the allocator was asked for)."""
    return tensor.untyped_storage().nbytes()


def measure(call):
    """One warm call (plans are built and cached in it), then the measured one. Returns the record's
    fields."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    tensors, sizes = allocations_of(call)
    outputs = [storage_bytes(t) for t in tensors]
    left = list(sizes)
    for size in outputs:
        if size in left:
            left.remove(size)
    return {
        "allocations": sizes,
        "outputs": outputs,
        "workspace": left,
        "peak_delta": torch.cuda.max_memory_allocated() - before,
        "results": tensors,
    }


def emit(record):
    """Prints one JSON line at once: a run cut short keeps what it has."""
    record.pop("results", None)
    print(json.dumps(record), flush=True)


def sdpa_cases(grid):
    """Yields shapes: every axis varied alone around the base (star), or the product (full)."""
    seen = set()

    def case(**kw):
        shape = dict(SDPA_BASE)
        shape.update(kw)
        key = tuple(sorted(shape.items()))
        if key not in seen and shape["hq"] % shape["hkv"] == 0:
            seen.add(key)
            yield shape

    yield from case()
    for hkv in SDPA_AXES["hkv"]:
        for b in (1, 2):
            yield from case(b=b, hkv=hkv)
    for b, hq in itertools.product(SDPA_AXES["b"], SDPA_AXES["hq"]):
        yield from case(b=b, hq=hq, hkv=hq)
    for s, d, causal in itertools.product(SDPA_AXES["s"], (64, 128), (True, False)):
        for hkv in (8, 32):
            yield from case(sq=s, skv=s, d=d, causal=causal, hkv=hkv)
    for d in SDPA_AXES["d"]:
        yield from case(d=d, hkv=32)
    for sq, skv in [(1, 4096), (128, 4096), (1024, 2048), (2048, 1024), (512, 77)]:
        yield from case(sq=sq, skv=skv, causal=False)
        yield from case(sq=sq, skv=skv, causal=False, hkv=32)
    if grid == "full":
        product = itertools.product(
            (1, 2, 3, 4),
            (8, 16, 24, 32, 40),
            (0, 1),
            (256, 1024, 4096, 8192, 16384),
            (64, 128),
            (True, False),
        )
        for b, hq, grouped, s, d, causal in product:
            yield from case(b=b, hq=hq, hkv=8 if grouped else hq, sq=s, skv=s, d=d, causal=causal)


def sdpa(shape, dtype, layout, with_stats=True):
    """Forward and backward of cuDNN attention for one shape; prints a line for each.

    layout "bshd": tensors are views of (batch, sequence, heads, d), as language models make them;
    "bhsd": contiguous.
    """

    def make(heads, seq):
        if layout == "bshd":
            return torch.randn(
                shape["b"], seq, heads, shape["d"], device="cuda", dtype=dtype
            ).transpose(1, 2)
        return torch.randn(shape["b"], heads, seq, shape["d"], device="cuda", dtype=dtype)

    base = dict(op="sdpa", dtype=str(dtype), layout=layout, **shape)
    try:
        q, k, v = (
            make(shape["hq"], shape["sq"]),
            make(shape["hkv"], shape["skv"]),
            make(shape["hkv"], shape["skv"]),
        )
        forward = measure(
            lambda: ATEN._scaled_dot_product_cudnn_attention(
                q, k, v, None, with_stats, 0.0, shape["causal"], False
            )
        )
        emit(dict(base, direction="forward" if with_stats else "inference", **forward))
        if not with_stats:
            return
        inputs = [t.requires_grad_() for t in (q, k, v)]
        out = ATEN._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, shape["causal"], False
        )[0]
        grad = torch.randn_like(out)
        backward = measure(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True))
        emit(dict(base, direction="backward", **backward))
    except (RuntimeError, ValueError) as error:
        emit(dict(base, error=str(error).splitlines()[0][:200]))


def conv(batch, layer, dtype, channels_last, benchmark, tf32):
    """Forward, data gradient and weight gradient of one convolution; prints a line for each."""
    cin, cout, kernel, stride, padding, size = layer
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.allow_tf32 = tf32
    base = {
        "op": "conv",
        "dtype": str(dtype),
        "channels_last": channels_last,
        "benchmark": benchmark,
        "tf32": tf32,
        "batch": batch,
    }
    base.update(cin=cin, cout=cout, kernel=kernel, stride=stride, padding=padding, size=size)
    memory = torch.channels_last if channels_last else torch.contiguous_format
    try:
        x = torch.randn(batch, cin, size, size, device="cuda", dtype=dtype).to(memory_format=memory)
        w = torch.randn(cout, cin, kernel, kernel, device="cuda", dtype=dtype).to(
            memory_format=memory
        )
        geometry = ([stride, stride], [padding, padding], [1, 1], False, [0, 0], 1)
        y = ATEN.convolution(x, w, None, *geometry)
        grad = torch.randn_like(y)
        emit(
            dict(
                base,
                direction="forward",
                **measure(lambda: [ATEN.convolution(x, w, None, *geometry)]),
            )
        )
        for direction, mask in (("dgrad", [True, False, False]), ("wgrad", [False, True, False])):
            record = measure(
                lambda mask=mask: ATEN.convolution_backward(grad, x, w, [0], *geometry, mask)
            )
            emit(dict(base, direction=direction, **record))
    except (RuntimeError, ValueError) as error:
        emit(dict(base, error=str(error).splitlines()[0][:200]))


def batch_norm(batch, channels, size, dtype, channels_last):
    """Training forward and backward of cuDNN's batch normalisation; prints a line for each.

    The forward's outputs are the result, the saved mean and variance, and the reserve space.
    """
    base = dict(
        op="batch_norm",
        dtype=str(dtype),
        channels_last=channels_last,
        batch=batch,
        channels=channels,
        size=size,
    )
    memory = torch.channels_last if channels_last else torch.contiguous_format
    try:
        x = torch.randn(batch, channels, size, size, device="cuda", dtype=dtype).to(
            memory_format=memory
        )
        weight, bias, mean, variance = (torch.ones(channels, device="cuda") for _ in range(4))
        forward = measure(
            lambda: ATEN.cudnn_batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5)
        )
        y, saved_mean, saved_variance, reserve = forward["results"]
        emit(dict(base, direction="forward", reserve=reserve.numel(), **forward))
        grad = torch.randn_like(y)
        arguments = (x, grad, weight, mean, variance, saved_mean, saved_variance, 1e-5, reserve)
        emit(
            dict(
                base,
                direction="backward",
                **measure(lambda: ATEN.cudnn_batch_norm_backward(*arguments)),
            )
        )
    except (RuntimeError, ValueError) as error:
        emit(dict(base, error=str(error).splitlines()[0][:200]))


def main():
    """Runs the cases, the most wanted first, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", choices=("star", "full"), default="star")
    parser.add_argument("--only", choices=("sdpa", "conv"), help="only these operations")
    parser.add_argument(
        "--seconds", type=float, default=420, help="stop starting new cases after this many seconds"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("cudnn_workspace.py: no CUDA device: run it on the GPU whose figures are wanted")
    properties = torch.cuda.get_device_properties(0)
    emit(
        {
            "op": "machine",
            "gpu": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),
            "default_backend_order": [str(b) for b in torch._C._get_sdp_priority_order()],
        }
    )
    end = time.monotonic() + options.seconds
    work = []
    if options.only != "conv":
        work += [lambda s=s: sdpa(s, torch.bfloat16, "bshd") for s in sdpa_cases("star")]
        few = [
            dict(SDPA_BASE),
            dict(SDPA_BASE, hkv=32),
            dict(SDPA_BASE, d=64, hkv=32),
            dict(SDPA_BASE, sq=1000, skv=1000),
        ]
        work += [lambda s=s: sdpa(s, torch.bfloat16, "bhsd") for s in few]
        work += [lambda s=s: sdpa(s, torch.float16, "bshd") for s in few]
        work += [lambda s=s: sdpa(s, torch.bfloat16, "bshd", with_stats=False) for s in few]
    if options.only != "sdpa":
        variants = [
            (64, torch.bfloat16, True, False, True),
            (64, torch.bfloat16, False, False, True),
            (64, torch.float32, False, False, True),
            (64, torch.float32, False, False, False),
            (64, torch.float32, True, False, True),
            (8, torch.bfloat16, True, False, True),
            (64, torch.bfloat16, True, True, True),
        ]
        work += [lambda v=v, y=y: conv(v[0], y, *v[1:]) for v in variants for y in RESNET50]
        shapes = [
            (64, 64, 112),
            (64, 64, 56),
            (64, 256, 56),
            (64, 512, 28),
            (64, 1024, 14),
            (64, 2048, 7),
            (8, 64, 56),
        ]
        kinds = [(torch.float32, False), (torch.float32, True), (torch.float16, True)]
        work += [lambda s=s, k=k: batch_norm(*s, *k) for k in kinds for s in shapes]
    if options.grid == "full" and options.only != "conv":
        work += [lambda s=s: sdpa(s, torch.bfloat16, "bshd") for s in sdpa_cases("full")]
    done = 0
    for case in work:
        if time.monotonic() > end:
            break
        case()
        done += 1
    emit({"op": "end", "cases_done": done, "cases": len(work)})


if __name__ == "__main__":
    main()
