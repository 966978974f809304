"""Traces of real runs: the laws that a trace must keep, the sums that the report has too, and the
tools that read it."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

from tests.interruptible import interruptible
from tests.torch_release import torch_release

pytestmark = pytest.mark.slow
JOB = Path(__file__).resolve().parent / "jobs" / "steps.py"
RANKS = 4
# what PyTorch tells its profiler; its process group of 2.15 names collectives otherwise, and no ranks
COLLECTIVES, PROCESS_GROUP_RANKS = (
    (("_allgather_base", "_reduce_scatter_base", "allreduce"), "[0, 1, 2, 3]")
    if torch_release() < (2, 15)
    else (("allGatherSingleImpl", "reduceScatterSingleImpl", "all_reduce"), "[]")
)
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
HTA = """
import json, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
overlap = analysis.get_comm_comp_overlap(visualize=False)
kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=1000, duration_ratio=1.0)
temporal = analysis.get_temporal_breakdown(visualize=False)
json.dump({"temporal": temporal.to_dict("records"), "overlap": overlap.to_dict("records"),
           "kinds": kinds.to_dict("records"), "kernels": kernels.to_dict("records")}, open(sys.argv[2], "w"))
"""


def load(path):
    return json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)


def span(event):
    start = int(Decimal(event["ts"]) * 1000)
    return start, start + int(Decimal(event["dur"]) * 1000)


def is_communication(event):
    return event["name"].startswith("ncclDevKernel")


class Traced:
    """The traces of one run by rank, and its report."""

    def __init__(self, folder, done, report=None):
        self.folder, self.done = folder, done
        self.report = json.loads(report.read_text()) if report is not None else None
        self.tops = {}
        for path in sorted(folder.glob("rank-*.json.gz")):
            top = load(path)
            assert path.name == f"rank-{top['distributedInfo']['rank']}.json.gz"
            self.tops[top["distributedInfo"]["rank"]] = top

    def complete(self, rank, *categories):
        return [
            e
            for e in self.tops[rank]["traceEvents"]
            if e["ph"] == "X" and (not categories or e["cat"] in categories)
        ]

    def steps(self, rank):
        return {
            int(e["name"].partition("#")[2]): span(e)
            for e in self.complete(rank, "user_annotation")
            if e["name"].startswith("ProfilerStep#")
        }


@pytest.fixture(scope="module")
def traced(phantora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    done = phantora(
        "--trace",
        folder / "traces",
        "--report",
        folder / "report.json",
        "torchrun",
        "--nnodes",
        2,
        "--nproc-per-node",
        2,
        JOB,
    )
    assert done.returncode == 0, done.stderr
    return Traced(folder / "traces", done, folder / "report.json")


def test_every_rank_has_a_trace_and_nothing_else_is_left(traced):
    assert sorted(path.name for path in traced.folder.iterdir()) == [
        f"rank-{rank}.json.gz" for rank in range(RANKS)
    ]
    assert "traces of 4 ranks, 5 steps of each" in traced.done.stderr


def test_work_on_a_stream_does_not_overlap(traced):
    for rank in range(RANKS):
        streams = defaultdict(list)
        for event in traced.complete(rank, *GPU):
            assert (event["pid"], event["tid"]) == (
                event["args"]["device"],
                event["args"]["stream"],
            )
            streams[event["args"]["stream"]].append(span(event))
        assert len(streams) >= 3  # computing, gathering, reducing
        for spans in streams.values():
            assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:]))


def test_work_begins_after_the_call_that_launched_it(traced):
    for rank in range(RANKS):
        calls = {
            e["args"]["correlation"]: e
            for e in traced.complete(rank, "cuda_runtime", "cuda_driver")
        }
        operators = {
            e["args"]["External id"]: e
            for e in traced.complete(rank, "cpu_op", "user_annotation")
            if "External id" in e["args"]
        }
        work = traced.complete(rank, *GPU)
        assert len({e["args"]["correlation"] for e in work}) == len(work)
        for event in work:
            call = calls[event["args"]["correlation"]]
            assert span(call)[0] <= span(event)[0]
            assert call["name"].startswith(
                {"gpu_memcpy": "cudaMemcpy", "gpu_memset": "cudaMemset"}.get(
                    event["cat"], ("cudaLaunchKernel", "cuLaunchKernel")
                )
            )
            around = operators[event["args"]["External id"]]
            assert span(around)[0] <= span(call)[0] <= span(around)[1]


def test_a_collective_ends_at_the_same_nanosecond_on_every_rank(traced):
    by_rank = []
    for rank in range(RANKS):
        events = [e for e in traced.complete(rank, "kernel") if is_communication(e)]
        assert all(
            e["args"]["Process Group Ranks"] == PROCESS_GROUP_RANKS
            and e["args"]["Group size"] == RANKS
            for e in events
        )
        by_rank.append(
            [(e["args"]["Collective name"], e["args"]["dtype"], span(e)[1]) for e in events]
        )
    assert len(by_rank[0]) > 5 * (2 * 3 + 3) and all(
        sorted(other) == sorted(by_rank[0]) for other in by_rank
    )
    assert {*COLLECTIVES} <= {name for name, _, _ in by_rank[0]}


def test_what_is_said_of_a_collective_is_what_the_job_asked_for(traced):
    gathers = [
        e["args"]
        for e in traced.complete(0, "kernel")
        if e["args"].get("Collective name") == COLLECTIVES[0]
    ]
    numbers = 2 * 2048 * 8192 + 2048 + 8192  # a layer's parameters
    assert {(a["In msg nelems"], a["Out msg nelems"], a["dtype"]) for a in gathers} == {
        (numbers // RANKS, numbers, "Float")
    }
    about = traced.tops[0]["distributedInfo"]
    assert about["pg_config"][0]["ranks"] == json.loads(PROCESS_GROUP_RANKS)
    assert about["nccl_version"] == traced.report["nccl"]["version"] != "unknown"


def test_sums_are_the_reports(traced):
    for entry in traced.report["ranks"]:
        top, work = traced.tops[entry["rank"]], traced.complete(entry["rank"], *GPU)
        moved = top["phantora-ns"]["squeezedNanoseconds"]
        assert (
            sum(e["args"]["alone (ns)"] for e in work if not is_communication(e))
            == entry["gpu_busy_ns"]
        )
        lengths = [span(e)[1] - span(e)[0] for e in work if is_communication(e)]
        assert (
            len(lengths) == entry["comm_launches"] and abs(sum(lengths) - entry["comm_ns"]) <= moved
        )
        stretched = [
            span(e)[1] - span(e)[0] - e["args"]["alone (ns)"]
            for e in work
            if not is_communication(e)
        ]
        assert sum(stretched) > 0  # contention
        assert (
            moved * 1000 < traced.report["simulated_ns"] * 5
            and top["phantora-ns"]["leftOutEvents"] == 0
        )
        assert max(span(e)[1] for e in work) <= traced.report["simulated_ns"]


def test_steps_are_the_optimizers(traced):
    for rank in range(RANKS):
        steps = traced.steps(rank)
        assert sorted(steps) == [0, 1, 2, 3, 4]
        assert all(steps[n][1] == steps[n + 1][0] for n in range(4))
        ends = [
            span(e)[1]
            for e in traced.complete(rank, "user_annotation")
            if e["name"] == "Optimizer.step#AdamW.step"
        ]
        assert sorted(ends) == [steps[n][1] for n in range(5)]
        backward = [
            span(e)[0] for e in traced.complete(rank, "cpu_op") if e["name"] == "MeanBackward0"
        ]
        inside = Counter(
            n for at in backward for n, (begin, end) in steps.items() if begin <= at < end
        )
        assert set(inside.values()) == {2}  # two micro-batches


def test_importers_rules(traced):
    for rank in range(RANKS):
        events = traced.tops[rank]["traceEvents"]
        timed = [e for e in events if e["ph"] != "M"]
        assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
        assert all(e["dur"] >= 0 for e in timed if e["ph"] == "X")
        assert all(type(e["tid"]) is int and 0 < e["tid"] < 1 << 22 for e in timed)
        named = {
            (e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"
        }
        assert {(e["pid"], e["tid"]) for e in timed} <= named
        assert {e["pid"] for e in timed} == {
            e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"
        }
        flows = Counter((e["ph"], e["id"]) for e in timed if e["ph"] in "sf")
        work = {e["args"]["correlation"] for e in traced.complete(rank, *GPU)}
        assert all(flows["s", number] == flows["f", number] == 1 for number in work)
        assert (
            '"rank": '
            in gzip.decompress((traced.folder / f"rank-{rank}.json.gz").read_bytes()).decode()[
                :4000
            ]
        )


def test_our_own_reader_agrees(traced):
    from phantora_ns.trace.kineto import read_trace

    trace = read_trace(traced.folder / "rank-1.json.gz")
    assert trace.rank == 1
    # work outlasts the host: the last one has no known end
    assert [step.number for step in trace.steps] == [
        0,
        1,
        2,
        3,
    ]
    work = traced.complete(1, *GPU)
    assert len(trace.activities) == len(work)
    assert sum(a.duration_ns for a in trace.activities) == sum(
        span(e)[1] - span(e)[0] for e in work
    )
    assert all(a.operator for a in trace.activities)


def union_ns(spans):
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def in_steps(traced, rank):
    """(GPU work as HTA counts it, what it leaves out: work launched after the last step's end)."""
    end = max(end for _, end in traced.steps(rank).values())
    calls = {
        e["args"]["correlation"]: span(e)[0]
        for e in traced.complete(rank, "cuda_runtime", "cuda_driver")
    }
    work, late = [], []
    for event in traced.complete(rank, *GPU):
        (late if calls[event["args"]["correlation"]] >= end else work).append(event)
    return work, late


def test_holistic_trace_analysis_reads_the_same(traced, tmp_path):
    pytest.importorskip("hta", reason="pip install --no-deps -r tests/traces/hta-requirements.txt")
    done = subprocess.run(
        [sys.executable, "-c", HTA, traced.folder, tmp_path / "hta.json"],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "hta.json").read_text())
    assert [row["rank"] for row in found["temporal"]] == list(range(RANKS))
    for row, overlap in zip(found["temporal"], found["overlap"]):
        work, late = in_steps(traced, row["rank"])
        rounding = len(work)  # it rounds each event to whole microseconds
        computing = [span(e) for e in work if e["cat"] == "kernel" and not is_communication(e)]
        talking = [span(e) for e in work if is_communication(e)]
        both = union_ns(computing) + union_ns(talking) - union_ns(computing + talking)
        whole = max(span(e)[1] for e in work) - min(span(e)[0] for e in work)
        assert abs(row["compute_time(us)"] - union_ns(computing) / 1e3) <= rounding
        # the last two are sums over gaps: an event's start and its length are both rounded
        assert abs(row["kernel_time(us)"] - whole / 1e3) <= 2 * rounding
        assert (
            abs(row["idle_time(us)"] - (whole - union_ns([span(e) for e in work])) / 1e3)
            <= 2 * rounding
        )
        share = 100 * both / union_ns(talking)
        assert abs(overlap["comp_comm_overlap_pctg"] - share) <= 100e3 * rounding / union_ns(
            talking
        )
        ours = Counter()
        for event in work:
            ours[event["name"]] += span(event)[1] - span(event)[0]
        theirs = {
            kernel["name"]: kernel["sum (us)"]
            for kernel in found["kernels"]
            if kernel["rank"] == row["rank"]
        }
        counts = Counter(e["name"] for e in work)
        assert set(theirs) == set(ours)
        assert all(0 <= ours[name] / 1e3 - us <= 2 * counts[name] for name, us in theirs.items())
        named = {name for name in theirs if name.startswith("ncclDevKernel")}
        reported_us = (
            traced.report["ranks"][row["rank"]]["comm_ns"]
            - sum(span(e)[1] - span(e)[0] for e in late if is_communication(e))
        ) / 1e3
        assert abs(sum(theirs[name] for name in named) - reported_us) <= rounding


def test_only_what_was_asked_for_and_what_finished_before_a_crash(phantora, tmp_path):
    done = phantora(
        "--trace",
        tmp_path,
        "--trace-steps",
        "1:3",
        "--trace-ranks",
        "1,3",
        "torchrun",
        "--nnodes",
        2,
        "--nproc-per-node",
        2,
        JOB,
        "--fail-at",
        4,
    )
    assert done.returncode == 1 and "ValueError: the job's own mistake" in done.stderr
    traced = Traced(tmp_path, done)
    assert sorted(traced.tops) == [1, 3]
    for rank in (1, 3):
        steps = traced.steps(rank)
        assert sorted(steps) == [1, 2]
        begin, end = steps[1][0], steps[2][1]
        host = [span(e) for e in traced.complete(rank, "cuda_runtime", "cuda_driver", "cpu_op")]
        assert host and all(begin <= at[0] < end for at in host)
        assert (
            len(
                [
                    e
                    for e in traced.complete(rank, "user_annotation")
                    if e["name"].startswith("Optimizer.step#")
                ]
            )
            == 2
        )


def test_after_ctrl_c_the_finished_steps_are_written(tmp_path):
    command = [
        sys.executable,
        "-m",
        "phantora_ns.cli",
        "--quiet",
        "--trace",
        tmp_path,
        "torchrun",
        "--nproc-per-node",
        2,
        JOB,
        "--hang-at",
        3,
    ]
    with subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=interruptible,
    ) as process:
        try:
            waiting = [line for line in (process.stdout.readline() for _ in range(2))]
            assert sorted(waiting) == ["WAITING 0\n", "WAITING 1\n"]
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    traced = Traced(tmp_path, None)
    assert {rank: sorted(traced.steps(rank)) for rank in traced.tops} == {
        0: [0, 1, 2],
        1: [0, 1, 2],
    }


def test_a_failed_job_s_own_message_is_followed_by_little(phantora, tmp_path):
    """No folder is named that is gone by then, and no number of a job that came nowhere."""
    page = tmp_path / "run.html"
    words = ("--html", page, "--trace-steps", "2:4", "--gpus-per-node", 1, "--host-time", "none")
    job = "import torch; torch.ones(9).cuda(); raise ValueError('its own')"
    done = phantora(*words, sys.executable, "-c", job, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    said = done.stderr.partition("ValueError: its own")[2].strip().splitlines()
    assert said[1:] == [
        "phantora-ns: no trace rank-0.json.gz: step 2 was not reached: this rank made 0 steps; the page has "
        "no timeline of them",
        "phantora-ns: the job failed before the end of a step",
        f"phantora-ns: page written; {page}",
    ]
    assert page.exists() and "the command failed with exit code 1" in said[0]


def test_steps_that_were_never_reached_are_said_to_be(phantora, tmp_path):
    done = phantora(
        "--trace",
        tmp_path,
        "--trace-steps",
        "9:",
        "torchrun",
        "--nproc-per-node",
        1,
        JOB,
        "--steps",
        2,
    )
    assert done.returncode == 70
    assert "no trace rank-0.json.gz: step 9 was not reached: this rank made 2 steps" in done.stderr
    assert list(tmp_path.iterdir()) == []
