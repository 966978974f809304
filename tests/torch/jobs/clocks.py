"""Runs under torchrun on 2 nodes x 2 ranks with measured host time: which clocks are simulated, and
that waits end.

The process group's time-out is 20 s, far less than the simulated time that passes between
collectives here.
"""

import ctypes
import os
import queue
import select
import signal
import socket
import threading
import time
import timeit
from datetime import timedelta

import torch
import torch.distributed as dist
from common import check, differs, run_checks

RANK, WORLD, LOCAL = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
TIMEOUT = timedelta(seconds=20)
WAIT_S = 0.3  # of waits with a time-out
OVERHEAD_S = (
    0.01  # launches, events and the interpreter around them: CPU time of some hundred calls
)


def products(size, count):
    """`count` products of bf16 matrices: 8192 takes 1.4 ms on an H200, 65536 two thirds of a
    second."""
    matrix = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
    for _ in range(count):
        torch.mm(matrix, matrix)


def both_clocks(work):
    """Seconds of `work` by CUDA events and by perf_counter."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    before = time.perf_counter()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3, time.perf_counter() - before


@check
def events_and_perf_counter_agree():
    products(8192, 2)
    for count in (1, 100, 400):
        by_events, by_clock = both_clocks(lambda: products(8192, count))  # noqa: B023
        if not by_events <= by_clock <= by_events + OVERHEAD_S:
            yield f"{count} products: {by_events} s by events, {by_clock} s by perf_counter"
        if not 0.001 < by_events / count < 0.003:
            yield f"{count} products took {by_events} s"
    by_events, by_clock = both_clocks(lambda: dist.all_reduce(torch.empty(1 << 28, device="cuda")))
    if not by_events <= by_clock <= by_events + OVERHEAD_S:
        yield f"all_reduce: {by_events} s by events, {by_clock} s by perf_counter"


@check
def compute_beside_communication_is_timed_alike():
    large = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")

    def beside():
        work = dist.all_reduce(large, async_op=True)
        products(8192, 400)
        work.wait()

    for _ in range(2):
        by_events, by_clock = both_clocks(beside)
        if not by_events <= by_clock <= by_events + OVERHEAD_S:
            yield f"{by_events} s by events, {by_clock} s by perf_counter"


@check
def compute_that_waits_for_nothing_is_slowed_in_its_events_too():
    large = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    alone, _ = both_clocks(lambda: products(8192, 40))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    work = dist.all_reduce(large, async_op=True)  # takes longer than the products
    before = time.perf_counter()
    start.record()
    products(8192, 40)
    end.record()
    torch.cuda.current_stream().synchronize()
    by_clock = time.perf_counter() - before
    work.wait()
    torch.cuda.synchronize()
    by_events = start.elapsed_time(end) / 1e3
    if not alone * 1.1 < by_events <= by_clock <= by_events + OVERHEAD_S:
        yield f"{by_events} s by events, {by_clock} s by perf_counter; {alone} s alone"
    for _ in range(50):
        dist.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
    yield from differs("later", start.elapsed_time(end) / 1e3, by_events)


@check
def events_keep_their_times():
    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    for event in events:
        event.record()
        products(8192, RANK + 1)
        dist.all_reduce(torch.ones(8, device="cuda"))
    torch.cuda.synchronize()
    first = [events[0].elapsed_time(event) for event in events]
    yield from differs("order", first, sorted(first))
    if first[-1] < 3 * 1.3 * WORLD:
        yield f"{first} ms around {3 * WORLD} products of the slowest rank"
    for _ in range(5):
        value = torch.ones(8, device="cuda")
        dist.all_reduce(value)
        yield from differs("value", value.sum().item(), 8.0 * WORLD)
    yield from differs("later", [events[0].elapsed_time(event) for event in events], first)


@check
def every_simulated_clock_tells_the_same():
    clocks = {
        "time": time.time,
        "perf_counter": time.perf_counter,
        "timeit": timeit.default_timer,
        "time_ns": lambda: time.time_ns() / 1e9,
        "perf_counter_ns": lambda: time.perf_counter_ns() / 1e9,
    }
    before = {name: clock() for name, clock in clocks.items()}
    products(65536, 3)
    torch.cuda.synchronize()
    spans = {name: clock() - before[name] for name, clock in clocks.items()}
    if not max(spans.values()) - min(spans.values()) < OVERHEAD_S or not 1 < spans["time"] < 10:
        yield f"{spans}"


@check
def all_ranks_show_the_same_time():
    dist.barrier()
    torch.cuda.synchronize()
    shown = [None] * WORLD
    dist.all_gather_object(shown, time.time())
    if max(shown) - min(shown) > 0.1:  # the CPU time of a few calls; one rank began seconds later
        yield f"{shown}"


@check
def host_work_counts():
    before, real = time.perf_counter(), time.thread_time()
    sum(range(3_000_000))
    spent, real = time.perf_counter() - before, time.thread_time() - real
    if not 0.9 * real - 1e-3 <= spent <= real + OVERHEAD_S:
        yield f"{spent} s of simulated time for {real} s of CPU time"


@check
def time_outs_ignore_simulated_time():
    work = dist.all_reduce(torch.ones(4, device="cuda"), async_op=True)
    simulated, real = time.perf_counter(), time.monotonic()
    products(65536, 160)
    torch.cuda.synchronize()
    simulated, real = time.perf_counter() - simulated, time.monotonic() - real
    work.wait()
    if simulated < 100:
        yield f"{simulated} s of simulated time"
    if real > simulated / 2:
        yield f"monotonic moved {real} s in {simulated} s of simulated time: it should be real"
    if RANK == 0:  # the others wait for this one in the collective, for longer than the time-out
        products(65536, 160)
        torch.cuda.synchronize()
    value = torch.ones(4, device="cuda")
    dist.all_reduce(value)
    yield from differs("sum", value, torch.full((4,), float(WORLD)))
    dist.barrier()


@check
def a_late_rank_is_waited_for():
    before = time.perf_counter()
    if RANK == 0:
        time.sleep(3)
        sum(range(5_000_000))
    value = torch.full((2,), float(RANK), device="cuda")
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    yield from differs("sum", value, torch.full((2,), sum(range(WORLD)) + 0.0))
    simulated = time.perf_counter() - before
    # adding five million numbers is less than a second
    if not 3 <= simulated < 5:
        yield f"{simulated} s of simulated time"


@check
def waits_with_a_time_out_are_real_and_pass_no_simulated_time():
    """What ends them comes in real time (docs/host-time.md)."""
    rung = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))

    def alarm():
        signal.setitimer(signal.ITIMER_REAL, WAIT_S)
        while not rung:
            signal.pause()

    here, _there = socket.socketpair()
    waits = {
        "Event.wait": lambda: threading.Event().wait(WAIT_S),
        "Condition.wait": lambda: held(threading.Condition()),
        "Queue.get": lambda: empty(queue.Queue()),
        "select": lambda: select.select([here], [], [], WAIT_S),
        "setitimer": alarm,
    }
    for name, wait in waits.items():
        simulated, real = time.perf_counter(), time.monotonic()
        wait()
        simulated, real = time.perf_counter() - simulated, time.monotonic() - real
        if not simulated < OVERHEAD_S < WAIT_S <= real + 0.001:
            yield f"{name}: {simulated} s of simulated time, {real} s of real time"
    signal.signal(signal.SIGALRM, handler)


def held(condition):
    with condition:
        condition.wait(WAIT_S)


def empty(numbers):
    try:
        numbers.get(timeout=WAIT_S)
    except queue.Empty:
        pass


@check
def a_deadline_in_simulated_time_is_reached_by_sleeping():
    before = time.time()
    while time.time() - before < 0.5:
        time.sleep(0.1)
    if not 0.5 <= time.time() - before < 1:
        yield f"{time.time() - before} s"
    sleeper = threading.Thread(target=time.sleep, args=(1,))  # it is not this rank's host
    before = time.time()
    sleeper.start()
    sleeper.join()
    if not time.time() - before < 0.5:
        yield f"{time.time() - before} s beside a sleeping thread"


@check
def a_stores_time_out_fires():
    store = dist.distributed_c10d._get_default_store()
    real = time.monotonic()
    try:
        store.wait([f"nobody sets this for {RANK}"], timedelta(seconds=2))
        yield "no error"
    except dist.DistStoreError:
        pass
    real = time.monotonic() - real
    if not 1.9 < real < 60:
        yield f"after {real} s"
    store.set(f"set by {RANK}", "yes")
    store.wait([f"set by {(RANK + 1) % WORLD}"], timedelta(seconds=60))
    yield from differs("value", store.get(f"set by {(RANK + 1) % WORLD}"), b"yes")


@check
def a_barrier_brings_the_clocks_together():
    if RANK == 1:
        products(65536, 10)
    dist.barrier()
    torch.cuda.synchronize()
    ends = [None] * WORLD
    dist.all_gather_object(ends, time.perf_counter() - START)
    if max(ends) - min(ends) > 0.5:  # ten products took seven seconds
        yield f"{ends}"


if __name__ == "__main__":
    if RANK == 1:  # in real time alone
        ctypes.CDLL(None).usleep(2_500_000)
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL), timeout=TIMEOUT)
    dist.barrier()
    torch.cuda.synchronize()
    START = time.perf_counter()
    run_checks()
    dist.destroy_process_group()
