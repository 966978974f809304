"""torch.profiler inside of a job. The oracle is `--trace` of the same run: both must say the same of
every call and every piece of GPU work, and key_averages() must add them up by operator."""

import gzip
import json
import sys
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

from phantora_ns.trace.kineto import read_trace

JOB = Path(__file__).resolve().parent / "jobs" / "profiled.py"
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
CYCLES = 2
FIRST_CORRELATION = 1 << 30
"""PyTorch mixes the numbers of calls and operators up, so those of calls begin here."""


def ns(microseconds):
    return int(Decimal(microseconds) * 1000)


def complete(events, *categories):
    return [event for event in events if event.get("ph") == "X" and event["cat"] in categories]


class Cycle:
    """What one rank's profiler has seen in one cycle, and the same part of the trace."""

    def __init__(self, folder, rank, number, traced):
        content = json.loads((folder / f"{rank}-{number}.json").read_text(), parse_float=Decimal)
        told = json.loads((folder / f"{rank}-{number}.averages").read_text())
        self.rank = rank
        self.path = folder / f"{rank}-{number}.json"
        self.events = content["traceEvents"]
        self.base_ns = content["baseTimeNanoseconds"]
        self.averages, self.after_ns = told["averages"], told["after"]
        self.before_ns = int((folder / f"{rank}.before").read_text())
        self.traced = traced

    def pairs(self, *categories):
        """Each event of the profiler's, and the trace's of the same correlation."""
        known = defaultdict(list)
        for event in complete(self.traced, *categories):
            known[event["args"]["correlation"]].append(event)
        for event in complete(self.events, *categories):
            (other,) = known[event["args"]["correlation"] - FIRST_CORRELATION]
            yield event, other


def cycles(folder, ranks):
    found = []
    for rank in range(ranks):
        name = f"rank-{rank}.json.gz" if ranks > 1 else "other/process-0.json.gz"
        packed = (folder / "trace" / name).read_bytes()
        traced = json.loads(gzip.decompress(packed), parse_float=Decimal)["traceEvents"]
        found += [Cycle(folder, rank, number, traced) for number in range(CYCLES)]
    return found


def check(found):
    """The laws of all cycles of a run."""
    offsets = defaultdict(set)
    for cycle in found:
        seen = Counter(event.get("cat") for event in cycle.events)
        assert all(seen[category] for category in (*GPU, *CALLS, "cpu_op", "cpu_instant_event"))
        for event, other in [*cycle.pairs(*GPU), *cycle.pairs(*CALLS)]:
            assert (event["name"], ns(event["dur"])) == (other["name"], ns(other["dur"]))
            offsets[cycle.rank].add(cycle.base_ns + ns(event["ts"]) - ns(other["ts"]))
        for event, other in cycle.pairs(*GPU):
            for fact in ("device", "stream"):
                assert event["args"][fact] == other["args"][fact]
        check_operators(cycle)
        check_sums(cycle)
    # one clock for everything; and it is the one that the rank reads
    assert all(len(of_rank) == 1 for of_rank in offsets.values())
    for cycle in found:
        steps = [
            e for e in complete(cycle.events, "user_annotation") if "ProfilerStep" in e["name"]
        ]
        assert len(steps) == 2
        for step in steps:
            begin = cycle.base_ns + ns(step["ts"])
            assert cycle.before_ns <= begin <= begin + ns(step["dur"]) <= cycle.after_ns


def check_operators(cycle):
    """A call lies within the operator that it belongs to, and what it launches begins after it."""
    operators = {event["args"]["External id"]: event for event in complete(cycle.events, "cpu_op")}
    calls = {e["args"]["correlation"]: e for e in complete(cycle.events, *CALLS)}
    inside = 0
    for call in calls.values():
        operator = operators.get(call["args"].get("External id"))
        if operator is None or operator["tid"] != call["tid"]:
            continue
        inside += 1
        assert ns(operator["ts"]) <= ns(call["ts"]) + 1
        assert ns(call["ts"]) + ns(call["dur"]) <= ns(operator["ts"]) + ns(operator["dur"]) + 1
    assert inside > 10
    for event in complete(cycle.events, *GPU):
        if event["args"]["correlation"] in calls:
            assert ns(event["ts"]) >= ns(calls[event["args"]["correlation"]]["ts"])
    arrows = {(e["ph"], e["id"]) for e in cycle.events if e.get("cat") == "ac2g"}
    for number in {event["args"]["correlation"] for event in complete(cycle.events, *GPU)}:
        assert ("f", number) in arrows
        assert ("s", number) in arrows or number not in calls


def check_sums(cycle):
    """key_averages() adds up, by operator, what the trace has."""
    operators = {
        event["args"]["External id"]: event["name"] for event in complete(cycle.traced, "cpu_op")
    }
    sums, names = Counter(), Counter()
    for event, other in cycle.pairs(*GPU):
        names[event["name"]] += ns(other["dur"])
        number = other["args"].get("External id")
        # between this operator and the call, c10d has an annotation, which is no operator
        around = "record_param_comms" if "Collective name" in other["args"] else None
        operator = operators.get(number, around)
        if "External id" in event["args"] and operator:
            sums[operator] += ns(other["dur"])
    told = [one for one in cycle.averages if one["self_us"]]
    spans = {e["name"] for e in complete(cycle.events, "gpu_user_annotation")}
    on_cpu = {one["name"]: round(one["self_us"] * 1000) for one in told if one["device"] == "CPU"}
    on_gpu = {
        one["name"]: round(one["self_us"] * 1000)
        for one in told
        if one["device"] == "CUDA" and one["name"] not in spans
    }
    on_gpu.pop("ProfilerStep*", None)
    assert sums and on_cpu == +sums
    assert on_gpu == names


def test_it_sees_what_the_trace_shows(phantora, tmp_path):
    command = ["--quiet", "--trace", tmp_path / "trace", "--", sys.executable, JOB, tmp_path]
    done = phantora(*command)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("torch.profiler shows simulated time") == 1
    check(cycles(tmp_path, 1))


@pytest.mark.nightly
def test_it_sees_communication_on_two_ranks(phantora, tmp_path):
    command = ["torchrun", "--nproc-per-node", 2, JOB, tmp_path]
    done = phantora("--quiet", "--trace", tmp_path / "trace", *command, timeout=280)
    assert done.returncode == 0, done.stderr
    found = cycles(tmp_path, 2)
    check(found)
    for cycle in found:
        trace = read_trace(cycle.path)
        assert [step.number for step in trace.steps][-2:] == [step.number for step in trace.steps]
        collectives = Counter(
            activity.collective.name for activity in trace.activities if activity.collective
        )
        assert collectives["all_gather"] and collectives["reduce_scatter"]
        # what was launched before the profiler's window has no operator to describe it
        members = {a.collective.members for a in trace.activities if a.collective}
        assert 2 in members and members <= {2, None}


@pytest.mark.nightly
def test_a_profile_does_not_change_the_run(phantora, tmp_path):
    """The same job with and without one, where host time is not counted: the same simulated time."""
    times = []
    for profiled in (0, 1):
        report = tmp_path / f"{profiled}.json"
        program = PLAIN.format(profile="profile()" if profiled else "nullcontext()")
        options = ["--quiet", "--host-time", "none", "--report", report]
        done = phantora(*options, "--", sys.executable, "-c", program)
        assert done.returncode == 0, done.stderr
        (time_ns,) = [line for line in done.stdout.splitlines() if line.isdigit()]
        times.append(int(time_ns))
    assert times[0] == times[1]


PLAIN = """
import time, torch
from contextlib import nullcontext
from torch.profiler import profile
model = torch.nn.Linear(512, 512).cuda()
data = torch.randn(64, 512, device="cuda")
torch.cuda.synchronize()
with {profile}:
    for _ in range(3):
        model(data).sum().backward()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    model(data).sum().backward()
    end.record()
    torch.cuda.synchronize()
print(round(start.elapsed_time(end) * 1e6))
"""
