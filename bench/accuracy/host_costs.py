"""Measures what CUDA calls and PyTorch operators cost the host on this machine, and what a launch
costs the GPU.

    python -m bench.accuracy.host_costs OUT.json

Why it exists: a step that the host limits takes what its calls take; libintercept adds these costs
to a simulated rank's clock. C loops (hostcosts.c) time the calls themselves; Python loops time
operators, as a training script pays for them. Needs torch with a GPU and a C compiler. All values
in ns unless a name says otherwise: minimum and median over 15 rounds.
"""

from __future__ import annotations

import ctypes
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
CUDA_MAJOR = (torch.version.cuda or "").partition(".")[0]
ROUNDS = 15
# Launches before a synchronisation: few enough that the driver's queue (1,024 entries) never fills.
BURST = 400
KERNELS = r"""
extern "C" __global__ void empty() {}
extern "C" __global__ void spin(long long cycles) { long long start = clock64(); while (clock64() - start < cycles); }
"""


def load_loops():
    """hostcosts.c as a library, its functions returning double."""
    folder = tempfile.mkdtemp()
    library = str(Path(folder, "hostcosts.so"))
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", str(HERE / "hostcosts.c"), "-o", library], check=True
    )
    loops = ctypes.CDLL(library)
    for name in (
        "launch_loop",
        "call_p_loop",
        "call_pp_loop",
        "call_ppu_loop",
        "call_void_loop",
        "memset_loop",
        "copy_loop",
        "launch_and_wait_loop",
    ):
        getattr(loops, name).restype = ctypes.c_double
    return loops


def compile_kernels():
    """KERNELS as a cubin for this GPU, by the NVRTC that torch brings."""
    torch.cuda._lazy_init()
    nvrtc = ctypes.CDLL(f"libnvrtc.so.{CUDA_MAJOR}")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    major, minor = torch.cuda.get_device_capability()
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{major}{minor}".encode())
    assert (
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), KERNELS.encode(), b"k.cu", 0, None, None)
        == 0
    )
    assert nvrtc.nvrtcCompileProgram(program, 1, options) == 0
    assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    image = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetCUBIN(program, image) == 0
    return image


def rounds(measure):
    """{min, median} of what `measure()` returns, the GPU idle before each round. Raises
    RuntimeError on a CUDA error."""
    values = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        values.append(measure())
    if min(values) < 0:
        raise RuntimeError(f"CUDA error {-min(values):.0f}")
    return {"min": round(min(values), 1), "median": round(statistics.median(values), 1)}


def call_costs(loops):
    """Per call, from C, on a stream of its own and, for launches, also behind a kernel that keeps
    the GPU busy."""
    runtime = ctypes.CDLL(f"libcudart.so.{CUDA_MAJOR}")
    pointer = ctypes.c_void_p
    image, library, empty, spin = compile_kernels(), pointer(), pointer(), pointer()
    assert (
        runtime.cudaLibraryLoadData(ctypes.byref(library), image, None, None, 0, None, None, 0) == 0
    )
    assert runtime.cudaLibraryGetKernel(ctypes.byref(empty), library, b"empty") == 0
    assert runtime.cudaLibraryGetKernel(ctypes.byref(spin), library, b"spin") == 0
    stream, other, event, timed = pointer(), pointer(), pointer(), pointer()
    for created in (stream, other):
        assert runtime.cudaStreamCreateWithFlags(ctypes.byref(created), 1) == 0
    # 2: no timing, as PyTorch's own events
    assert runtime.cudaEventCreateWithFlags(ctypes.byref(event), 2) == 0
    assert runtime.cudaEventCreate(ctypes.byref(timed)) == 0
    device, pinned = (
        torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"),
        torch.zeros(1 << 20, dtype=torch.uint8).pin_memory(),
    )
    pageable, number = torch.zeros(1 << 20, dtype=torch.uint8), ctypes.c_int()
    from_pinned, from_pageable = pointer(pinned.data_ptr()), pointer(pageable.data_ptr())
    to, second = pointer(device.data_ptr()), pointer(device.data_ptr() + (1 << 19))
    cycles = ctypes.c_longlong(20_000_000)  # about 10 ms
    spin_parameters = (pointer * 1)(ctypes.addressof(cycles))

    def behind_spin(measure):
        def measured():
            loops.launch_loop(runtime.cudaLaunchKernel, spin, 1, 1, spin_parameters, stream, 1)
            return measure()

        return measured

    def launches(blocks, threads):
        return lambda: loops.launch_loop(
            runtime.cudaLaunchKernel, empty, blocks, threads, None, stream, BURST
        )

    def calls(kind, function, *arguments, count=BURST):
        return lambda: getattr(loops, kind)(getattr(runtime, function), *arguments, count)

    assert runtime.cudaEventRecord(event, stream) == 0
    measures = {
        "cudaLaunchKernel_idle": launches(1, 32),
        "cudaLaunchKernel_132x128": launches(132, 128),
        "cudaLaunchKernel_behind_busy": behind_spin(launches(1, 32)),
        "cudaEventRecord": calls("call_pp_loop", "cudaEventRecord", event, stream),
        "cudaEventRecord_timed": calls("call_pp_loop", "cudaEventRecord", timed, stream),
        "cudaEventRecord_behind_busy": behind_spin(
            calls("call_pp_loop", "cudaEventRecord", event, stream)
        ),
        "cudaStreamWaitEvent": calls("call_ppu_loop", "cudaStreamWaitEvent", other, event, 0),
        "cudaStreamWaitEvent_behind_busy": behind_spin(
            calls("call_ppu_loop", "cudaStreamWaitEvent", other, event, 0)
        ),
        "cudaEventQuery": calls("call_p_loop", "cudaEventQuery", event),
        "cudaStreamQuery": calls("call_p_loop", "cudaStreamQuery", stream),
        "cudaStreamSynchronize_idle": calls("call_p_loop", "cudaStreamSynchronize", stream),
        "cudaDeviceSynchronize_idle": calls("call_void_loop", "cudaDeviceSynchronize"),
        "cudaGetDevice": calls("call_p_loop", "cudaGetDevice", ctypes.byref(number)),
        "cudaGetLastError": calls("call_void_loop", "cudaGetLastError"),
        "cudaMemsetAsync_4B": calls("memset_loop", "cudaMemsetAsync", to, 4, stream),
        "cudaMemcpyAsync_d2d_4B": calls("copy_loop", "cudaMemcpyAsync", to, second, 4, 3, stream),
        "cudaMemcpyAsync_h2d_pinned_4B": calls(
            "copy_loop", "cudaMemcpyAsync", to, from_pinned, 4, 1, stream
        ),
        "cudaMemcpyAsync_h2d_pageable_4B": calls(
            "copy_loop", "cudaMemcpyAsync", to, from_pageable, 4, 1, stream
        ),
        "cudaMemcpyAsync_h2d_pageable_32KB": calls(
            "copy_loop", "cudaMemcpyAsync", to, from_pageable, 32768, 1, stream
        ),
        "cudaMemcpyAsync_d2h_pageable_4B": calls(
            "copy_loop", "cudaMemcpyAsync", from_pageable, to, 4, 2, stream, count=100
        ),
        "launch_and_wait": lambda: loops.launch_and_wait_loop(
            runtime.cudaLaunchKernel, runtime.cudaStreamSynchronize, empty, None, stream, 100
        ),
    }
    costs = {name: rounds(measure) for name, measure in measures.items()}
    for name, blocks, threads, count in (
        ("gpu_period_of_empty_kernels", 1, 32, BURST),
        ("gpu_period_of_empty_kernels_132x128", 132, 128, BURST),
        ("gpu_event_to_event_behind_busy", 1, 32, 0),
    ):
        costs[name] = rounds(
            lambda shape=(blocks, threads, count): gpu_period(
                loops, runtime, empty, spin, spin_parameters, *shape
            )
        )
    return costs


def gpu_period(loops, runtime, empty, spin, spin_parameters, blocks, threads, count):
    """GPU time per kernel of `count` empty ones queued behind a busy one (count 0: between two
    adjacent events, in all)."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record(), after.record()  # created before the measurement, because it is created lazily
    loops.launch_loop(runtime.cudaLaunchKernel, spin, 1, 1, spin_parameters, stream, 1)
    before.record()
    if count:
        loops.launch_loop(runtime.cudaLaunchKernel, empty, blocks, threads, None, stream, count)
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) * 1e6 / max(count, 1)


def per_call(function, burst=BURST):
    """Host ns per call of `function`, in bursts with a synchronisation between: the GPU must not be
    the limit."""

    def measure():
        start = time.perf_counter_ns()
        for _ in range(burst):
            function()
        return (time.perf_counter_ns() - start) / burst

    measure()
    return rounds(measure)


def operator_costs():
    """Host ns per operator, as a training script pays for it from Python."""
    x, y = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    a, w = (
        torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16),
        torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16),
    )
    leaf = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q = torch.zeros(1, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
    many, event, host = (
        [torch.zeros(64, device="cuda") for _ in range(100)],
        torch.cuda.Event(),
        torch.zeros(1),
    )
    norm = torch.nn.RMSNorm(64, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()

    def backward():
        F.linear(a, leaf).sum().backward()
        leaf.grad = None

    def enter_stream():
        with torch.cuda.stream(stream):
            pass

    cases = {
        "add_": lambda: x.add_(1),
        "mul": lambda: x * y,
        "empty": lambda: torch.empty(8, device="cuda"),
        "view": lambda: x.view(2, 4),
        "linear": lambda: F.linear(a, w),
        "mm": lambda: a @ w,
        "to_float": lambda: a.float(),
        "cat": lambda: torch.cat((a, w), -1),
        "rms_norm": lambda: norm(a),
        "event_record": event.record,
        "stream_wait_event": lambda: stream.wait_event(event),
        "stream_context": enter_stream,
        "stream_query": lambda: torch.cuda.current_stream().query(),
        "synchronize_idle": torch.cuda.synchronize,
        "python_pass": lambda: None,
    }
    slow = {
        "linear_sum_backward": backward,
        "foreach_add_100": lambda: torch._foreach_add_(many, 1.0),
        "attention": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "item": lambda: x[0].item(),
        "h2d_pageable_4B": lambda: x[:1].copy_(host),
    }
    return {name: per_call(case) for name, case in cases.items()} | {
        name: per_call(case, 100) for name, case in slow.items()
    }


def operator_costs_inference():
    """The same for three operators without autograd: the difference is its bookkeeping."""
    a, w = (
        torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16),
        torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16),
    )
    return {
        "linear": per_call(lambda: F.linear(a, w)),
        "mul": per_call(lambda: a * w),
        "to_float": per_call(lambda: a.float()),
    }


def python_score():
    """Seconds of 5 million additions in pure Python, five times: how fast one core is."""

    def loop():
        start, total = time.perf_counter(), 0
        for i in range(5_000_000):
            total += i
        return time.perf_counter() - start

    return sorted(loop() for _ in range(5))


def cpu_model():
    """The processor's name, as the kernel gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def main():
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    report = {
        "gpu": torch.cuda.get_device_name(),
        "cpu": cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mem_get_info_after_init": [free, total],
        "python_loop_5e6_s": python_score(),
        "calls_ns": call_costs(load_loops()),
        "operators_ns": operator_costs(),
    }
    with torch.inference_mode():
        report["operators_inference_ns"] = operator_costs_inference()
    Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["calls_ns"]), json.dumps(report["operators_ns"]))


if __name__ == "__main__":
    main()
