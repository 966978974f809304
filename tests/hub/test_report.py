"""The report from pages and hub.json, whole and with parts missing."""

import json
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from client import STEP, Client, form
from inprocess import NoTimes, hub_json

from phantora_ns.config import load_cluster
from phantora_ns.config.description import write_cluster
from phantora_ns.protocol import (
    RANK_STATS_AT,
    RANK_STATS_MAGIC,
    RANK_STATS_VERSION,
    KernelClass,
    Precision,
    Source,
)
from phantora_ns.report.rank_stats import read_rank_stats
from phantora_ns.report.run_report import build_report
from phantora_ns.report.spent import spent_lines
from phantora_ns.report.summary import summary_lines
from phantora_ns.sweep.point_run import result_of


def write_page(
    path,
    clock=0,
    host_cpu=0,
    launches=0,
    peak=0,
    reserved=0,
    device=0,
    busy=(0,) * 8,
    elsewhere=0,
    refused=0,
):
    words = (
        RANK_STATS_MAGIC,
        RANK_STATS_VERSION,
        clock,
        9,
        host_cpu,
        0,
        launches,
        2,
        10,
        20,
        peak,
        reserved,
        device,
        7,
        0,
        0,
        *busy,
        *[1] * 8,
    )
    page = bytearray(struct.pack("<32Q", *words) + bytes(3840))
    struct.pack_into("<Q", page, RANK_STATS_AT["elsewhere_ns"], elsewhere)
    struct.pack_into("<QQ", page, RANK_STATS_AT["refused_bytes"], refused, 5 if refused else 0)
    path.write_bytes(page)


@pytest.fixture
def run_dir(tmp_path):
    """Two ranks, rank 1 restarted once, and a process that is no rank."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "run.json").write_text(
        json.dumps({"cluster": "h200-rail", "nodes": 1, "gpus_per_node": 2})
    )
    write_page(
        tmp_path / "ranks" / "a",
        5_000_000_000,
        100,
        10,
        3 << 30,
        4 << 30,
        0,
        (600, 0, 0, 300, 0, 0, 0, 100),
    )
    write_page(tmp_path / "ranks" / "b", 10, 1, 1, 1 << 30, 1 << 30, 1, (10, 0, 0, 0, 0, 0, 0, 0))
    write_page(
        tmp_path / "ranks" / "c",
        4_000_000_000,
        200,
        20,
        2 << 30,
        2 << 30,
        1,
        (990, 0, 0, 0, 0, 0, 0, 0),
    )
    write_page(tmp_path / "ranks" / "d", 0)
    (tmp_path / "ranks" / "half").write_bytes(b"PHNS")
    counts = {"node": 0, "comm_ns": 50, "comm_wait_ns": 10, "exposed_comm_ns": 20, "messages": 5}
    clients = [
        {"client": i, "rank": rank, "device": rank, "shm": shm, **counts}
        for i, (rank, shm) in enumerate([(1, "b"), (0, "a"), (1, "c"), (-1, "d")])
    ]
    hub = hub_json(
        simulated_ns=6_000_000_000,
        rollbacks=3,
        messages=20,
        hub_cpu_ns=1000,
        unsupported_calls={"cudaFoo": 3},
        clients=clients,
    )
    (tmp_path / "hub.json").write_text(json.dumps(hub))
    return tmp_path


def test_everything_that_was_asked_for(run_dir):
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=12.34567)
    assert json.loads(json.dumps(report)) == report
    assert (report["schema"], report["world_size"], report["nodes"], report["wall_s"]) == (
        2,
        2,
        1,
        12.346,
    )
    assert (report["simulated_ns"], report["rollbacks"], report["messages"]) == (
        6_000_000_000,
        3,
        20,
    )
    assert report["unsupported_calls"] == {"cudaFoo": 3}
    assert (report["exit_code"], report["failed_by"], report["ended_by"]) == (0, None, None)
    assert report["kernel_time_share"] == {"exact": 0.8, "gemm": 0.15, "guess": 0.05}
    first, second, other = report["ranks"]
    assert first == {
        "rank": 0, "representative": None, "node": 0, "device": 0, "processes": 1,
        "host_cpu_ns": 100, "gpu_busy_ns": 1000,
        "gpu_unmeasured_ns": 400, "comm_ns": 50,
        "comm_wait_ns": 10, "exposed_comm_ns": 20,
        "peak_allocated_bytes": 3 << 30, "peak_reserved_bytes": 4 << 30,
        "peak_driver_bytes": 20, "peak_pinned_bytes": 0,
        "refused_bytes": None, "refused_free_bytes": None, "refused_step": None, "steps": 0,
        "kernel_launches": 10, "comm_launches": 2, "messages": 5,
    }  # fmt: skip
    assert (
        second["rank"],
        second["processes"],
        second["kernel_launches"],
        second["gpu_busy_ns"],
    ) == (1, 2, 21, 1000)
    assert second["peak_allocated_bytes"] == 2 << 30 and second["comm_ns"] == 100
    assert (other["rank"], other["peak_allocated_bytes"]) == (None, None)


def test_what_held_the_peak_is_in_the_summary(run_dir):
    """Else --memory-modules without --report or --html would say nothing."""
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    assert report["memory_held"] is None
    assert not any("at the peak" in line for line in summary_lines(report))
    held = [["activations", "a", 3 << 30], ["gradients", "b", 1 << 30]]
    report["memory_held"] = {"rank": 1, "peak_bytes": 4 << 30, "held": held}
    (run_dir / "memory").mkdir()  # --memory-modules was given, and nothing was seen
    unseen = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    assert unseen["memory_held"]["rank"] is None
    assert any("nothing was seen" in line for line in summary_lines(unseen))
    said = "at the peak of 4.00 GiB on rank 1: activations 3.00 GiB, gradients 1.00 GiB"
    assert summary_lines(report).count(said) == 1


def test_a_run_that_its_user_ended_did_not_fail(run_dir):
    """Though a rank was refused memory just before, and the exit code is not zero."""
    path = run_dir / "ranks" / "c"
    for steps, said in ((0, "before the end of a step"), (1, "after 1 step"), (5, "after 5 steps")):
        write_page(path, refused=7)
        page = bytearray(path.read_bytes())
        struct.pack_into("<Q", page, RANK_STATS_AT["steps"], steps)
        path.write_bytes(page)
        report = build_report(run_dir, exit_code=130, failed_by=None, ended_by="SIGINT", wall_s=1)
        assert report["ended_by"] == "SIGINT" and not report["out_of_memory"]
        assert f"ended by Ctrl-C {said}" in summary_lines(report)
        assert not any("out of memory" in line for line in summary_lines(report))
    report |= {"ended_by": "SIGTERM", "exit_code": 143}
    assert "ended by SIGTERM after 5 steps" in summary_lines(report)
    result = result_of(report, 143)
    assert (result["state"], result["why"]) == ("failed", "ended by SIGTERM after 5 steps")


@pytest.mark.parametrize(
    "refused, exit_code, failed_by, expected",
    [
        (7, 1, "job", True),
        (0, 1, "job", False),
        (7, 0, None, False),  # the job went on without
        (7, 70, "hub", False),
    ],
)
def test_a_job_that_failed_when_a_gpu_had_no_room_is_out_of_memory(
    run_dir, refused, exit_code, failed_by, expected
):
    write_page(run_dir / "ranks" / "c", refused=refused)
    report = build_report(run_dir, exit_code=exit_code, failed_by=failed_by, wall_s=1.0)
    assert report["out_of_memory"] is expected
    rank = report["ranks"][1]
    said = [line for line in summary_lines(report) if line.startswith("out of memory: in step ")]
    assert len(said) == expected
    assert (rank["refused_bytes"], rank["refused_free_bytes"]) == (
        (7, 5) if refused else (None, None)
    )


def test_the_summary_says_what_to_check(run_dir):
    lines = summary_lines(build_report(run_dir, exit_code=0, failed_by=None, wall_s=12.0))
    assert (
        lines[0] == "simulated 6.00 s of 2 GPUs on 1 node in 12.00 s, 2x slower than simulated time"
    )
    assert "80.0% exact, 15.0% gemm, 5.0% guess" in lines[2]
    assert any(line.startswith("warning: 5.0% of GPU time is guessed") for line in lines)
    assert any("cudaFoo (3 times)" in line for line in lines)


def test_the_summary_of_a_failed_job_does_not_bury_its_message(run_dir):
    """Paces, clocks and shares of a job that came nowhere are no result; what may be the cause stays."""
    report = build_report(run_dir, exit_code=1, failed_by="job", wall_s=38.0)
    report["warnings"] = {"odd": 1}
    lines = summary_lines(report)
    assert lines == [
        "the job failed before the end of a step",
        "warning: calls that are not supported and failed: cudaFoo (3 times)",
        "warning: odd",
    ]
    # what of ours fails after the job, such as a trace, takes nothing from its numbers
    ours = summary_lines(report | {"exit_code": 70, "failed_by": "launcher"})
    assert ours == summary_lines(report | {"exit_code": 0, "failed_by": None}) != lines
    for rank in report["ranks"]:
        rank["steps"] = 5
    assert summary_lines(report)[0] == "the job failed after 5 steps"


def test_without_the_hubs_part_nothing_is_made_up(run_dir):
    (run_dir / "hub.json").unlink()
    report = build_report(run_dir, exit_code=1, failed_by="hub", wall_s=1.0)
    assert (
        report["messages"] is None
        and report["rollbacks"] is None
        and report["simulated_ns"] == 5_000_000_000
    )
    assert [rank["rank"] for rank in report["ranks"]] == [None] * 4
    assert {rank["comm_ns"] for rank in report["ranks"]} == {None}
    assert any("hub left no result" in line for line in summary_lines(report))


def test_a_run_in_which_nothing_happened(tmp_path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "run.json").write_text(
        json.dumps({"cluster": None, "nodes": 1, "gpus_per_node": 1})
    )
    report = build_report(tmp_path, exit_code=3, failed_by="job", wall_s=0.5)
    assert (
        report["ranks"] == [] and report["kernel_time_share"] == {} and report["simulated_ns"] == 0
    )
    assert summary_lines(report)


@pytest.mark.parametrize("data", [b"", b"x" * 100, bytes(4096)])
def test_what_is_no_page_is_refused(tmp_path, data):
    (tmp_path / "page").write_bytes(data)
    with pytest.raises(ValueError):
        read_rank_stats(tmp_path / "page")


def test_a_real_hubs_part_fits(hub):
    clients = [Client(hub.run_dir, rank) for rank in range(2)]
    comm = form(clients)
    for client in clients:
        client.all_reduce(comm, 1 << 20)
    syncs = [client.start_sync() for client in clients]
    times = [client.finish_sync(*sync) for client, sync in zip(clients, syncs)]
    hub.stop()
    report = build_report(hub.run_dir, exit_code=0, failed_by=None, wall_s=1.0)
    assert report["simulated_ns"] == max(times) and [rank["rank"] for rank in report["ranks"]] == [
        0,
        1,
    ]
    assert summary_lines(report)


@pytest.mark.parametrize("unmeasured", [False, True])
def test_times_of_another_gpu_model_are_counted(run_dir, monkeypatch, unmeasured):
    """They are guesses where no database is of the simulated GPU."""
    monkeypatch.setattr(NoTimes, "scaled", 3)
    monkeypatch.setattr(NoTimes, "scaled_from", "h100")
    monkeypatch.setattr(NoTimes, "unmeasured", unmeasured)
    (run_dir / "hub.json").write_text(json.dumps(hub_json()))
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    assert report["scaled"] == {"from": "h100", "signatures": 3}
    assert report["guesses"] == ({"kernel time scaled from h100": 3} if unmeasured else {})


@pytest.mark.parametrize(
    ("versions", "clause"),
    [
        (["torch 2.11, cuDNN 9.19"], "; 25.0% recorded under torch 2.11, cuDNN 9.19"),
        (["torch 2.11", "torch 2.12"], "; 25.0% recorded under other library versions"),
    ],
)
def test_what_other_library_versions_measured(run_dir, versions, clause):
    write_page(run_dir / "ranks" / "a", 5, busy=(600, 400) + (0,) * 6, elsewhere=500)
    hub = json.loads((run_dir / "hub.json").read_text())
    (run_dir / "hub.json").write_text(json.dumps(hub | {"other_versions": versions}))
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    assert report["recorded_elsewhere"] == {"time_share": 0.25, "versions": versions}
    (line,) = [line for line in summary_lines(report) if line.startswith("GPU time by source")]
    assert line.endswith(clause)


@pytest.mark.parametrize("versions", [None, []])
def test_nothing_is_said_of_records_under_the_jobs_own_versions(run_dir, versions):
    hub = json.loads((run_dir / "hub.json").read_text())
    (run_dir / "hub.json").write_text(json.dumps(hub | {"other_versions": versions}))
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    expected = None if versions is None else {"time_share": 0.0, "versions": []}
    assert report["recorded_elsewhere"] == expected
    assert not any("recorded under" in line for line in summary_lines(report))


def test_clocks_are_means_over_all_ranks(run_dir):
    """Rank 0: 1,000 ns at 1,500 MHz, half of them held down."""
    for name, cycles, held in (("a", 1500, 500), ("b", 0, 0), ("c", 0, 0)):
        path = run_dir / "ranks" / name
        page = bytearray(path.read_bytes())
        struct.pack_into("<Q", page, RANK_STATS_AT["cycles"], cycles)
        struct.pack_into("<Q", page, RANK_STATS_AT["held_ns"], held)
        path.write_bytes(page)
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    busy = sum(rank["gpu_busy_ns"] for rank in report["ranks"])
    assert report["gpu_clock"] == {
        "mean_mhz": round(1000 * 1500 / busy, 1),
        "held_share": round(500 / busy, 6),
    }
    assert any(line.startswith("GPU clock: ") for line in summary_lines(report))


def test_an_unknown_clock_is_said_to_be_unknown(run_dir):
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    assert report["gpu_clock"] is None
    assert any("not modelled" in line for line in summary_lines(report))


def test_a_step_with_its_band(hub):
    """The hub's own cluster file and marks, and kernels that were all recorded."""
    (client,) = [Client(hub.run_dir, 0)]
    for step in range(6):
        client.advance(20_000_000)
        flop = [0] * len(Precision.LABELS)
        flop[Precision.BF16] = (2**64 - 10**13 + step * 2 * 10**12) % 2**64  # it wraps
        flop[Precision.FP8], flop[Precision.UNCOUNTED] = step * 10**12, 3 * step
        client.send(STEP, client.clock, {}, client.host_head(), step * 20_000_000, 0, flop)
    client.sync()
    page = hub.run_dir / "ranks" / client.name
    gemm = 8 * KernelClass.GEMM + Source.EXACT
    for field, at in (("busy_ns", Source.EXACT), ("work_ns", gemm)):
        struct.pack_into("<Q", client.page, RANK_STATS_AT[field] + 8 * at, 120_000_000)
    struct.pack_into("<Q", client.page, RANK_STATS_AT["uncounted_ns"], 30_000_000)
    hub.stop()
    assert page.exists()
    report = build_report(hub.run_dir, exit_code=0, failed_by=None, wall_s=1.0)
    assert report["kernel_time_ns"] == {"gemm": {"exact": 120_000_000}}
    step = report["step"]
    assert (step["rank"], step["count"], step["settled"], step["mean_ns"]) == (
        0,
        5,
        3,
        20_000_000,
    )
    arithmetic = report["arithmetic"]
    assert arithmetic["flop"] == {"bf16": 2 * 10**12, "fp8": 10**12}
    at_peak_ns = 2e12 / 989_400 + 1e12 / 1_978_900
    assert arithmetic["hfu"] == pytest.approx(at_peak_ns / 20_000_000, abs=1e-6)
    assert arithmetic["uncounted"] == {"launches": 3, "time_share": 0.25, "kernels": []}
    said = (
        "HFU 12.6%: 2 TFLOP a step in bf16, 1 TFLOP a step in fp8; not counted: 3 launches a step"
    )
    assert any(line.startswith(said) for line in summary_lines(report))
    band = step["band"]
    assert step["no_band"] is None and band["kernels"] == band["host"] == band["communication"] == 0
    assert band["low_ns"] < 20_000_000 < band["high_ns"]
    assert any(
        re.match(r"step 20 ms \(19\.\d-20\.\d\): 80%", line) for line in summary_lines(report)
    )
    assert (
        "the step goes into: computing 100.0% (of it matrix products 100.0%), exposed communication 0.0%, "
        "idle 0.0%"
    ) in summary_lines(report)


def test_the_line_of_a_step_has_no_exponent(run_dir):
    """977 ms to 1,036 ms was printed as 922-1.04e+03."""
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1e5)
    band = {"low_ns": 922e6, "high_ns": 1036.2e6, "coverage": 0.8}
    band |= dict.fromkeys(("kernels", "gpu", "communication", "host"), 0.0)
    step = {"mean_ns": 977_300_000, "band": band, "exposed_ns": 0, "busy_ns": 0, "host_ns": 0}
    lines = summary_lines(report | {"step": step})
    assert any(line.startswith("step 977.3 ms (922-1,036): 80%") for line in lines)
    assert lines[0].endswith(", 16,667x slower than simulated time")


@given(
    st.integers(1, 10**10),
    *[st.integers(0, 2 * 10**10)] * 3,
    st.dictionaries(st.sampled_from(KernelClass.LABELS), st.integers(1, 10**12), min_size=1),
    st.integers(0, 1),
)
def test_the_parts_of_a_step_are_all_of_it(mean, busy, exposed, host, classes, launches):
    report = {
        "step": {"mean_ns": mean, "busy_ns": busy, "exposed_ns": exposed, "host_ns": host},
        "kernel_time_ns": {name: {"exact": ns} for name, ns in classes.items()},
        "ranks": [{"comm_launches": None}, {"comm_launches": launches}],
    }
    (line,) = spent_lines(report)
    form = r"the step goes into: computing ([\d.]+)% \(of it (.*)\), exposed communication ([\d.]+)%, (.*) ([\d.]+)%"
    computing, kinds, waiting, what, rest = re.fullmatch(form, line.partition(";")[0]).groups()
    of_it = [float(share) for share in re.findall(r"([\d.]+)%", kinds)]
    # each figure is rounded
    assert float(computing) + float(waiting) + float(rest) == pytest.approx(100, abs=0.16)
    assert sum(of_it) == pytest.approx(100, abs=0.26) and len(of_it) == min(4, len(classes))
    assert float(waiting) == pytest.approx(min(100, 100 * exposed / mean), abs=0.051)
    if busy + exposed <= mean:
        assert float(computing) == pytest.approx(100 * busy / mean, abs=0.051)
    assert what == ("idle or slowed down by communication" if launches else "idle")
    if abs(float(rest) - 10) > 0.1:
        assert (";" in line) == (float(rest) > 10)


def test_memory_in_use_is_said_where_the_job_reset_the_counter(run_dir):
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    for in_use, said in ((1.4, False), (3, True)):
        for rank in report["ranks"]:
            rank |= {"gpu_busy_ns": 1, "peak_allocated_bytes": 2**30}
            rank["peak_driver_bytes"] = int(in_use * 2**30)
        (line,) = [line for line in summary_lines(report) if line.startswith("per GPU: ")]
        assert ("peak memory 1.00 GiB" in line) != said
        assert ("peak memory 3.00 GiB in use (1.00 GiB by PyTorch's counter" in line) == said


def test_work_of_a_step_is_said_for_a_second(run_dir):
    hub, run = (json.loads((run_dir / name).read_text()) for name in ("hub.json", "run.json"))
    hub["clients"][1]["steps"] = [[at * 500_000_000, 0, 0, 0] for at in range(4)]
    (run_dir / "hub.json").write_text(json.dumps(hub))
    for work in (None, {"amount": 131072.0, "unit": "tokens"}):
        (run_dir / "run.json").write_text(json.dumps(run | {"work": work}))
        report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
        told = report["step"]["work"]
        said = [line for line in summary_lines(report) if "--work" in line]
        if work is None:
            assert told is None and not said
        else:
            assert told["per_s"] == 2 * 131072  # two steps a second
            assert told["per_gpu_s"] * report["world_size"] == pytest.approx(told["per_s"])
            assert said[0].startswith("262,144 tokens/s, ")


def test_model_flop_of_the_run_makes_mfu(run_dir):
    """As the launcher hands it over, in run.json."""
    hub, run = (json.loads((run_dir / name).read_text()) for name in ("hub.json", "run.json"))
    flop = [0] * len(Precision.LABELS)
    for at in range(4):
        flop[Precision.BF16] = at * 10**12
        hub["clients"][1].setdefault("steps", []).append([at * 500_000_000, 0, 0, 0, [*flop]])
    (run_dir / "hub.json").write_text(json.dumps(hub))
    (run_dir / "run.json").write_text(json.dumps(run | {"model_flop": 6e14}))
    write_cluster(load_cluster("h100-1x8"), run_dir)
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    ranks = sum(rank["rank"] is not None for rank in report["ranks"])
    could = ranks * 989.4e12 * 0.5
    assert report["arithmetic"]["mfu"] == pytest.approx(6e14 / could, abs=1e-6)
    said = f"MFU {6e14 / could:.1%}: 1 TFLOP a step in bf16; 600 TFLOP of the model (--model-flop)"
    assert any(said in line for line in summary_lines(report))


def test_no_band_where_nothing_was_measured(run_dir):
    hub = json.loads((run_dir / "hub.json").read_text())
    hub["clients"][1]["steps"] = [[at * 5_000_000, 0, 0, 0] for at in range(4)]
    (run_dir / "hub.json").write_text(json.dumps(hub))
    for model, words in (("b200", "nothing was measured on NVIDIA B200"), (None, "is gone")):
        if model is not None:
            write_cluster(load_cluster(f"{model}-1x8"), run_dir)
        else:
            (run_dir / "cluster.json").unlink()
        report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
        assert report["step"]["mean_ns"] == 5_000_000 and report["step"]["band"] is None
        (line,) = [line for line in summary_lines(report) if line.startswith("step ")]
        assert line.startswith("step 5 ms, with no band: ") and words in line


def test_no_step_is_made_up(run_dir):
    report = build_report(run_dir, exit_code=0, failed_by=None, wall_s=1)
    assert report["step"] is None
    assert not any(line.startswith("step ") for line in summary_lines(report))
