"""This flow simulator against SimGrid's: the same schedules, the same sharing, one after the other
on one machine.

Why it exists: absolute flows per second say as much about the machine as about the program; a ratio
measured within one run does not. `python -m bench.flows.simgrid.compare [--limit SECONDS] [--repeat
N] [--only TEXT]` prints, per schedule, flows per CPU second of both, their ratio, both makespans
and why they differ. CPU time, since other work may share the machine; the least of a few runs,
taken in turn. SimGrid is not a dependency: `apt-get install libsimgrid-dev` (Debian 12 has 3.32)
brings it, the driver is compiled on demand, and without it this side alone is measured.
"""

import argparse
import gc
import json
import multiprocessing
import shutil
import signal
import subprocess
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.flows import schedules
from phantora_ns.sim._flow_native import NativeEngine
from phantora_ns.sim.flows import FlowSimulator

HERE = Path(__file__).resolve().parent
OUT_OF_TIME = 3  # the driver's exit status
# Plain max-min fairness: no latency, no TCP window, no protocol overhead, no share lost to
# acknowledgements.
FAIR_SHARING = [
    "--cfg=network/model:CM02",
    "--cfg=network/TCP-gamma:0",
    "--cfg=network/bandwidth-factor:1",
    "--cfg=network/latency-factor:0",
    "--cfg=network/weight-S:0",
    "--cfg=network/crosstraffic:0",
    "--log=root.thres:warning",
]
SIMGRID_PRECISION_NS = 1.0  # its default precision/timing, 1e-9 s: dates closer than that are one
SHORT_S = 10  # a run is repeated only when it is this short


@dataclass
class Schedule:
    """Steps of (start_ns, route, size_bytes); a step begins when the one before is complete.
    `collective`: one object each."""

    name: str
    capacities: dict
    steps: list
    collective: bool

    @property
    def flows(self) -> int:
        return sum(map(len, self.steps))


@dataclass
class Run:
    cpu_s: float
    makespan_ns: float
    ends_ns: array | None = None
    adding_s: float | None = None  # of cpu_s, what one Python call per flow costs


def all_schedules() -> list[Callable[[], Schedule]]:
    """All schedules, each made when it is needed: together they are millions of objects."""

    def ring(hosts, flows):
        step = [(0, route, size) for route, size in next(schedules.ring_steps(hosts, hosts))]
        return Schedule(
            f"ring of {hosts:,} on a star", schedules.star(hosts), [step] * (flows // hosts), True
        )

    def all_to_all(hosts, equal):
        step = [(0, route, size) for route, size in schedules.all_to_all(hosts, equal)]
        sizes = "equal sizes" if equal else "sizes that differ"
        return Schedule(f"all-to-all of {hosts}, {sizes}", schedules.fat_tree(), [step], True)

    def random_pairs(load, flows, span_ns):
        step = [
            (start, route, size)
            for start, route, size in schedules.random_pairs(432, flows, span_ns)
        ]
        return Schedule(
            f"random pairs, 432 hosts, {load} load", schedules.fat_tree(), [step], False
        )

    return [
        lambda: ring(128, 256_000),
        lambda: ring(1024, 256_000),
        lambda: ring(8192, 262_144),
        lambda: random_pairs("2 %", 186_192, 186_192_000),
        lambda: random_pairs("50 %", 20_000, 930_000),
        lambda: all_to_all(64, False),
        lambda: all_to_all(64, True),
        lambda: all_to_all(432, True),
    ]


def one_by_one(schedule: Schedule) -> Run:
    """A handle for each flow, and its completion read."""
    before = time.process_time()
    simulator = FlowSimulator(schedule.capacities, engine=NativeEngine)
    now, ends, adding_s = 0, array("q"), 0.0
    for step in schedule.steps:
        add = time.process_time()
        handles = [simulator.add(now + start, route, size) for start, route, size in step]
        adding_s += time.process_time() - add
        ends.extend(map(simulator.completion_ns, handles))
        now = max(ends[-len(step) :])
        simulator.commit(now)
    return Run(time.process_time() - before, now, ends, adding_s)


def as_groups(schedule: Schedule) -> Run:
    """A handle for each step, as the timeline has for a collective. Equal steps are prepared
    once."""
    before = time.process_time()
    simulator = FlowSimulator(schedule.capacities, engine=NativeEngine)
    now, ready = 0, {}
    for step in schedule.steps:
        if id(step) not in ready:
            ready[id(step)] = simulator.group((route, size) for _, route, size in step)
        now = simulator.completion_ns(simulator.add_group(now, ready[id(step)]))
        simulator.commit(now)
    return Run(time.process_time() - before, now)


def bounded(function: Callable[[Schedule], Run], schedule: Schedule, limit_s: int) -> Run | None:
    """`function` in a process of its own, ended when it has used `limit_s` of CPU: then None."""

    def child(pipe):
        # the default action of SIGPROF ends the process
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        run = function(schedule)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(run)

    # the child must neither copy the schedule nor scan it for garbage
    gc.freeze()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(sender,))
    process.start()
    sender.close()
    try:
        run = receiver.recv()
    except EOFError:
        run = None
    process.join()
    if run is None and process.exitcode != -signal.SIGPROF:
        raise RuntimeError(
            f"{schedule.name}: the measured process ended with status {process.exitcode}"
        )
    return run


def build_driver(folder: Path) -> Path | None:
    """The compiled driver, or None, having said why, where SimGrid or a C++ compiler is missing."""
    compiler = shutil.which("c++")
    probe = [
        compiler,
        "-x",
        "c++",
        "-std=c++17",
        "-fsyntax-only",
        "-include",
        "simgrid/s4u.hpp",
        "/dev/null",
    ]
    if compiler is None or subprocess.run(probe, capture_output=True).returncode:
        print(
            "SimGrid is not measured: its headers, or c++, are missing; get them with `apt-get "
            "install libsimgrid-dev g++`"
        )
        return None
    driver = folder / "driver"
    command = [
        compiler,
        "-O2",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-o",
        driver,
        HERE / "driver.cpp",
        "-lsimgrid",
    ]
    subprocess.run(command, check=True)
    return driver


def write_schedule(schedule: Schedule, path: Path) -> None:
    """In the form that driver.cpp explains."""
    number = {link: position for position, link in enumerate(schedule.capacities)}
    with path.open("w") as file:
        print(len(number), schedule.flows, file=file)
        file.writelines(f"{capacity!r}\n" for capacity in schedule.capacities.values())
        for position, step in enumerate(schedule.steps):
            for start, route, size in step:
                print(
                    position, start, size, len(route), *(number[link] for link in route), file=file
                )


def run_simgrid(driver: Path, path: Path, limit_s: int) -> tuple[Run, str] | None:
    """A run and SimGrid's version; None when it has used `limit_s` of CPU."""
    ends = path.with_suffix(".ends")
    with path.open() as file:
        command = [driver, str(limit_s), ends, *FAIR_SHARING]
        done = subprocess.run(command, stdin=file, stdout=subprocess.PIPE, text=True)
    if done.returncode == OUT_OF_TIME:
        return None
    done.check_returncode()
    said = json.loads(done.stdout)
    return Run(
        said["cpu_s"], said["makespan_ns"], array("d", map(float, ends.read_text().split()))
    ), said["version"]


def explain(schedule: Schedule, ours: Run, theirs: Run) -> str:
    """Says whether rounding explains the difference. Our end of each step is rounded up to whole
    ns."""
    difference = ours.makespan_ns - theirs.makespan_ns
    relative = difference / theirs.makespan_ns
    text = f"{ours.makespan_ns:,} ns against {theirs.makespan_ns:,.2f} ns, relative {relative:+.1e}"
    allowed = len(schedule.steps) + SIMGRID_PRECISION_NS
    if -allowed <= difference <= allowed:
        return f"{text}: rounding ({len(schedule.steps)} steps, ours each up to whole ns, SimGrid's precision 1 ns)"
    return text + ": MORE THAN ROUNDING"


def largest_difference(ours: Run, theirs: Run) -> str:
    """Of single flows. SimGrid lets flows that end within its precision end together, and such
    shifts add up along a chain."""
    worst = max(range(len(ours.ends_ns)), key=lambda i: abs(ours.ends_ns[i] - theirs.ends_ns[i]))
    far = sum(abs(a - b) > 2 for a, b in zip(ours.ends_ns, theirs.ends_ns, strict=True))
    gap = ours.ends_ns[worst] - theirs.ends_ns[worst]
    return (
        f"flow by flow at most {gap:+,.2f} ns of {theirs.ends_ns[worst]:,.0f}; "
        f"{far} of {len(ours.ends_ns)} by more than 2 ns"
    )


def measure(
    schedule: Schedule, driver: Path | None, folder: Path, limit_s: int, repeat: int
) -> None:
    modes = {"one handle per flow": one_by_one} | (
        {"groups": as_groups} if schedule.collective else {}
    )
    runners = {
        mode: (lambda f=function: bounded(f, schedule, limit_s)) for mode, function in modes.items()
    }
    version = ""
    if driver:
        path = folder / "schedule"
        write_schedule(schedule, path)

        def simgrid():
            nonlocal version
            found = run_simgrid(driver, path, limit_s)
            version = found[1] if found else version
            return found and found[0]

        runners["SimGrid"] = simgrid
    best = {}
    for turn in range(repeat):
        for name, runner in runners.items():
            if turn and (best[name] is None or best[name].cpu_s > SHORT_S):
                continue
            run = runner()
            if not turn or run and run.cpu_s < best[name].cpu_s:
                best[name] = run
    print(f"\n{schedule.name}: {schedule.flows:,} flows", flush=True)
    theirs = best.get("SimGrid")
    for name, run in best.items():
        if run is None:
            print(f"  {name:20s} not finished in {limit_s} s of CPU")
            continue
        line = f"  {name:20s} {schedule.flows / run.cpu_s:12,.0f} flows/s (CPU {run.cpu_s:8.3f} s)"
        line += "" if run.adding_s is None else f", {run.adding_s:.3f} s of it calls of add"
        if name != "SimGrid" and theirs:
            line += f", {theirs.cpu_s / run.cpu_s:,.2f} x SimGrid"
        elif name != "SimGrid" and driver:
            line += f", more than {limit_s / run.cpu_s:,.1f} x SimGrid"
        print(line + (f", version {version}" if name == "SimGrid" else ""))
    ours, grouped = best["one handle per flow"], best.get("groups")
    if ours and grouped and ours.makespan_ns != grouped.makespan_ns:
        raise RuntimeError(
            f"{schedule.name}: {grouped.makespan_ns} ns as groups, {ours.makespan_ns} ns flow by flow"
        )
    if ours and theirs:
        print(f"  makespan: {explain(schedule, ours, theirs)}")
        if len(schedule.steps) == 1:  # over many steps this repeats the difference of the makespans
            print(f"  {largest_difference(ours, theirs)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--limit", type=int, default=60, help="CPU seconds for one run (default 60)"
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=3,
        help=f"runs, the least counts (1 where it takes {SHORT_S} s)",
    )
    parser.add_argument("--only", default="", help="schedules whose name contains this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flows-simgrid-") as name:
        folder = Path(name)
        driver = build_driver(folder)
        for make in all_schedules():
            schedule = make()
            if arguments.only in schedule.name:
                measure(schedule, driver, folder, arguments.limit, arguments.repeat)


if __name__ == "__main__":
    main()
