"""Runs as one process with two GPUs: what a job asks of the CUDA runtime and of
libraries besides cuBLAS and cuDNN.

Streams and events, copies over PCIe and NVLink, allocator options, tensors that other processes
use.

`runtime_and_libraries.py settings` only allocates, for a second process with other allocator
settings.
"""

import json
import os
import subprocess
import sys
import warnings

import torch
from common import check, differs, run_checks, say, timed

MIB = 1 << 20


def rate(work, size):
    """GB/s of a copy."""
    return size / timed(work) / 1e6


@check
def copies_between_places():
    size = 256 * MIB
    pinned, pageable = (
        torch.empty(size, dtype=torch.uint8, pin_memory=True),
        torch.empty(size, dtype=torch.uint8),
    )
    here, there = (torch.empty(size, dtype=torch.uint8, device=f"cuda:{i}") for i in range(2))
    there.copy_(here)  # the first one makes the other GPU's context
    say(
        "RATES",
        to_device=rate(lambda: here.copy_(pinned, non_blocking=True), size),
        to_host=rate(lambda: pinned.copy_(here, non_blocking=True), size),
        from_pageable=rate(lambda: here.copy_(pageable), size),
        peer=rate(lambda: there.copy_(here, non_blocking=True), size),
    )
    work = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()

    def both():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            here.copy_(pinned, non_blocking=True)
        for _ in range(30):
            work @ work
        torch.cuda.current_stream().wait_stream(side)

    def products():
        for _ in range(30):
            work @ work

    products()
    alone, copying, together = (
        timed(products),
        timed(lambda: here.copy_(pinned, non_blocking=True)),
        timed(both),
    )
    if not max(alone, copying) <= together < 0.9 * (alone + copying):
        yield f"a copy beside products takes {together} ms; they take {alone}, the copy {copying}"


@check
def streams_and_events_by_hand():
    least, greatest = torch.cuda.Stream.priority_range()
    streams = [torch.cuda.Stream(priority=p) for p in (least, greatest)]
    yield from differs("priorities", [s.priority for s in streams], [least, greatest])
    owner = torch.cuda.Stream()
    external = torch.cuda.ExternalStream(owner.cuda_stream)
    yield from differs("same stream", external.cuda_stream, owner.cuda_stream)
    a = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.mm(a, a)
    torch.cuda.synchronize()
    done, later, first = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    first.record()
    with torch.cuda.stream(external):
        for _ in range(5):
            torch.mm(a, a)
        done.record()
    yield from differs("still running", [done.query(), owner.query()], [False, False])
    streams[0].wait_event(done)
    with torch.cuda.stream(streams[0]):
        later.record()
    later.synchronize()
    yield from differs(
        "over", [done.query(), owner.query(), streams[0].query()], [True, True, True]
    )
    if (
        not 0
        < first.elapsed_time(done)
        <= first.elapsed_time(later)
        < 1.1 * first.elapsed_time(done)
    ):
        yield f"{first.elapsed_time(done)} ms to the work's end, {first.elapsed_time(later)} ms to what waited for it"
    yield from differs("never recorded", torch.cuda.Event().query(), True)


@check
def a_sleeping_kernel_takes_its_cycles():
    @torch.library.custom_op("tests::sleep", mutates_args=())
    def sleep(x: torch.Tensor, cycles: int) -> torch.Tensor:
        torch.cuda._sleep(cycles)
        return x.clone()

    x = torch.ones(4, device="cuda")
    for cycles in (1_980_000, 49_500_000, 1_980_000_000):  # 1, 25 and 1,000 ms of an H200's clock
        ms = cycles / 1_980_000
        alone = timed(lambda cycles=cycles: torch.cuda._sleep(cycles))
        within = timed(lambda cycles=cycles: sleep(x, cycles))
        for what, took in (("alone", alone), ("in an operator", within)):
            if not ms <= took < 1.01 * ms + 0.2:
                yield f"{cycles} cycles {what} take {took} ms, not {ms}"


def linear_algebra(x):
    """Name -> result, from a batch of matrices; only what is unique, not up to signs or
    rotations."""
    square = x.transpose(1, 2) @ x + torch.eye(x.shape[-1], device=x.device)
    return {
        "cholesky": torch.linalg.cholesky(square),
        "inv": torch.linalg.inv(square),
        "det": torch.linalg.det(square),
        "solve": torch.linalg.solve(square, x.transpose(1, 2)),
        "eigvalsh": torch.linalg.eigvalsh(square),
        "svdvals": torch.linalg.svdvals(x),
        "pinv": torch.linalg.pinv(x),
        "q r": torch.matmul(*torch.linalg.qr(x)),
        "rank": torch.linalg.matrix_rank(x),
        "one cholesky": torch.linalg.cholesky(square[0]),
        "one solve": torch.linalg.solve(square[0], x[0, 0]),
        "eig": torch.linalg.eigvals(square[0]).real.sort().values,
        "norm": torch.linalg.matrix_norm(x, 2),
        "cond": torch.linalg.cond(square),
        "triangular": torch.linalg.solve_triangular(square.triu(), square, upper=True),
    }


def transforms(x):
    return {
        "fft": torch.fft.fft(x),
        "fftn": torch.fft.fftn(x),
        "along the first": torch.fft.fft(x, dim=0),
        "rfft": torch.fft.rfft(x),
        "there and back": torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1]),
        "hfft": torch.fft.hfft(x),
        "stft": torch.stft(
            x.flatten(), 16, window=torch.ones(16, device=x.device), return_complex=True
        ),
    }


@check
def solvers_and_transforms_have_the_cpus_values():
    torch.manual_seed(4)
    x = torch.randn(6, 5, 4, dtype=torch.float64)
    for family in (linear_algebra, transforms):
        expected = family(x)
        for name, given in family(x.cuda()).items():
            wanted = expected[name]
            if given.is_complex():
                given, wanted = torch.view_as_real(given), torch.view_as_real(wanted)
            yield from differs(name, given, wanted, 1e-9)


@check
def solvers_and_transforms_take_time():
    # ms on an H200: bench/frameworks/micro.py
    measured = {
        "cholesky": (1.79, 8.65),
        "qr": (28.7, 96.1),
        "lu": (11.9, 34.2),
    }
    for what, work in (
        ("fft", torch.fft.fft),
        ("cholesky", torch.linalg.cholesky),
        ("qr", torch.linalg.qr),
        ("eigh", torch.linalg.eigh),
        ("lu", torch.linalg.lu_factor),
    ):
        small, large = (torch.zeros(n, n, device="cuda") for n in (4096, 8192))
        work(small)
        times = timed(lambda: work(small)), timed(lambda: work(large))  # noqa: B023
        # between a pass over memory and a cubic operation
        if what not in measured and not 2 < times[1] / times[0] < 16:
            yield f"{what}: {times} ms"
        for ms, real in zip(times, measured.get(what, ()), strict=False):
            if not 1 / 1.5 < ms / real < 1.5:
                yield f"{what}: {ms} ms, and {real} on an H200"


@check
def what_is_not_answered_fails_by_name():
    warnings.simplefilter("ignore")  # sparse tensors are beta
    ones = torch.ones(2, 4, 4, device="cuda")
    for what, call, code in (
        ("sparse", lambda: ones[0].to_sparse_csr() @ ones[0], "not supported"),
        ("recurrent", lambda: torch.nn.LSTM(4, 4).cuda()(ones), "NOT_SUPPORTED"),
    ):
        try:
            call()
            yield f"{what}: no error"
        except RuntimeError as error:
            if code not in str(error):
                yield f"{what}: {error}"


def take(tensors, answers):
    """In another process: adds one to the tensor that it is handed, and hands over one of its
    own."""
    given = tensors.get()
    given.add_(1)
    torch.cuda.synchronize()
    answers.put([given.sum().item(), given.device.index])
    own = torch.arange(3.0, device="cuda")
    answers.put(own)
    tensors.get()


@check
def tensors_are_handed_to_another_process():
    import torch.multiprocessing as torch_multiprocessing

    context = torch_multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    other = context.Process(target=take, args=(tensors, answers))
    other.start()
    mine = torch.arange(4.0, device="cuda:1")
    free = torch.cuda.mem_get_info(1)[0]
    tensors.put(mine)
    yield from differs("seen there", answers.get(), [10.0, 1])
    yield from differs("changed there", mine, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    theirs = answers.get()
    yield from differs("theirs", theirs, torch.tensor([0.0, 1.0, 2.0]))
    yield from differs("charged here", torch.cuda.mem_get_info(1)[0], free)
    del theirs
    tensors.put(None)
    other.join()
    yield from differs("its exit code", other.exitcode, 0)
    mine.zero_()
    yield from differs("zeroed", mine.sum().item(), 0.0)


@check
def compiled_by_searching():
    x = torch.zeros(4096, 1024, device="cuda")
    # as mode="max-autotune-no-cudagraphs", without its descent along every coordinate, which
    # compiles for minutes
    searched = torch.compile(
        lambda x: (x * 2 + 1).softmax(1).sum(0),
        options={"max_autotune": True, "coordinate_descent_tuning": False},
    )
    yield from differs("shape", list(searched(x).shape), [1024])
    # ms to read it once, at 4.8 TB/s (H200 data sheet)
    took, least = (
        timed(lambda: searched(x)),
        x.nbytes / 4.8e9,
    )
    if not took > least:
        yield f"{took} ms, reading its input alone takes {least}"


@check
def symmetric_memory_is_refused():
    """Its kernels communicate by themselves, which is not simulated: no rendezvous, rather than
    collectives that cost nothing."""
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    dist.init_process_group(
        "nccl",
        init_method="tcp://localhost:0",
        rank=0,
        world_size=1,
        device_id=torch.device("cuda", 0),
    )
    tensor = symmetric.empty(1024, device="cuda")
    try:
        symmetric.rendezvous(tensor, dist.group.WORLD)
        yield "no error"
    except RuntimeError as error:
        if "not supported" not in str(error):
            yield str(error)
    dist.destroy_process_group()


def settings_alone():
    x = torch.arange(1000.0, device="cuda")
    blocks = [torch.empty(3 * MIB, device="cuda") for _ in range(9)]
    back = (torch.ones(100).pin_memory().cuda(non_blocking=True) + 1).cpu()
    held = torch.cuda.memory_reserved()
    taken = torch.cuda.mem_get_info()[0]
    del blocks
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    try:
        torch.empty(150 << 30, dtype=torch.uint8, device="cuda")
        refused = False
    except torch.cuda.OutOfMemoryError:
        refused = True
    print(
        json.dumps(
            {
                "sums": [x.sum().item(), back.sum().item()],
                "held": held,
                "left": torch.cuda.memory_reserved(),
                "freed": torch.cuda.mem_get_info()[0] - taken,
                "refused": refused,
                "backend": torch.cuda.get_allocator_backend(),
            }
        )
    )


@check
def allocator_options():
    for options in (
        "max_split_size_mb:64",
        "backend:cudaMallocAsync",
        "roundup_power2_divisions:4,garbage_collection_threshold:0.6",
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:4,pinned_use_background_threads:True",
    ):
        done = subprocess.run(
            [sys.executable, __file__, "settings"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": options},
        )
        if done.returncode:
            yield f"{options}: {done.stderr[-600:]}"
            continue
        seen = json.loads(done.stdout)
        yield from differs(
            f"{options}: backend",
            seen["backend"],
            "cudaMallocAsync" if "Async" in options else "native",
        )
        yield from differs(f"{options}: values", seen["sums"], [499500.0, 200.0])
        if (
            not 108 * MIB <= seen["held"] <= 160 * MIB
            or seen["left"] > 20 * MIB
            or not 90 * MIB <= seen["freed"] <= 160 * MIB
        ):
            yield f"{options}: {seen}"
        yield from differs(f"{options}: 150 GiB refused", seen["refused"], True)


if __name__ == "__main__":
    if sys.argv[1:] == ["settings"]:
        settings_alone()
    else:
        run_checks(only=sys.argv[1:] or None)
