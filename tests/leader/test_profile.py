"""Why it exists: `phantora-ns profile` from the command line to a database, and runs from that
database alone. The machine's GPU is an emulated one: the inner phantora-ns is the job of an outer
one, and CUPTI is a fake (fake_cupti.c)."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from phantora_ns.kernels.database.database import Database

HERE = Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("leading", HERE / "leading.py")
leading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(leading)


@pytest.fixture(scope="module")
def machine(phantora, tmp_path_factory):
    """Runs phantora-ns on a machine with one H200."""
    fake = leading.build_fake(tmp_path_factory.mktemp("fake"))

    def run(*arguments, **options):
        cupti = f"LD_PRELOAD={fake}:$LD_PRELOAD PHANTORA_CUPTI={fake}"
        return leading.on_one_gpu(phantora, *arguments, environment=cupti, **options)

    return run


@pytest.mark.nightly
@pytest.mark.timeout(500)  # three runs of three ranks
@pytest.mark.parametrize("isolation", ["none", "namespaces"])
def test_ranks_lead_one_after_another_until_all_is_measured(phantora, machine, tmp_path, isolation):
    out, report = tmp_path / "times.sqlite", tmp_path / "report.json"
    job = ["torchrun", "--nproc-per-node", 3, HERE / "stages.py"]
    done = machine(
        "profile",
        "--isolation",
        isolation,
        "--host-time",
        "none",
        "--report",
        report,
        "-o",
        out,
        "--name",
        "stages",
        *job,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 leads; run 1" in done.stderr and "rank 2 leads; run 2" in done.stderr
    assert "rank 0 leads once more, for what its host pays" in done.stderr
    # rank 2 has all that rank 1 has
    assert f"kernels measured on ranks 0, 2, host costs on rank 0; in {out}" in done.stderr
    with Database.open(out) as database:
        runs = {bool(run.samples): [] for run in database.runs()}
        for run in database.runs():
            runs[bool(run.samples)].append(run)
        assert {run.configuration for run in database.runs()} == {"stages"}
        assert sorted(run.fields["rank"] for run in runs[True]) == ["0", "2"]
        assert [run.fields["rank"] for run in runs[False]] == ["0"]
        assert (
            not any(run.host.calls or run.host.sites for run in runs[True])
            and runs[False][0].host.sites
        )
        assert {"launch", "gemm", "record"} <= set(runs[False][0].host.calls)
        assert any("gemm aten::addmm 1" == site.text for site in runs[False][0].host.sites.values())
        assert all(
            set(run.host.numbers) <= {"latency", "gap"} and run.host.score
            for run in database.runs()
        )
    last = json.loads(report.read_text())["leading"]
    assert (last["led"], last["unmeasured_signatures"], last["profile"], last["problem"]) == (
        [0],
        0,
        None,
        None,
    )
    assert (last["host_recorded"], last["samples"], last["awaited"]) == (True, 0, 0)

    # without a GPU: the same command line from the database alone, with the same times for the same
    # signatures
    alone = phantora(
        "--host-time", "none", "--report", report, "--leaders", "none", "--kernels", out, *job
    )
    assert alone.returncode == 0, alone.stderr
    found = json.loads(report.read_text())
    assert (
        found["kernel_time_share"] == {"exact": 1.0}
        and found["databases"][0] == str(out)
        and found["leading"] is None
    )


@pytest.mark.slow
def test_a_live_run_names_what_nobody_measured(machine, tmp_path):
    report = tmp_path / "report.json"
    done = machine(
        "--isolation",
        "none",
        "--host-time",
        "none",
        "--report",
        report,
        "torchrun",
        "--nproc-per-node",
        2,
        HERE / "stages.py",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    live = found["leading"]
    assert (live["led"], live["unmeasured_ranks"]) == ([0], [1]) and live[
        "unmeasured_signatures"
    ] > 3
    # Over an emulated GPU the leader's first kernels take longer than a leader is waited for while it
    # sleeps, so it may measure later what was estimated.
    estimated = live["estimated_after_waiting"]
    assert estimated.keys() == {"1"} and estimated["1"] >= live["unmeasured_signatures"]
    job = f"torchrun --nproc-per-node 2 {HERE / 'stages.py'}"
    assert live["profile"] == f"phantora-ns profile --leaders 1 --isolation none {job}"
    assert live["profile"] in done.stderr
    first, second = found["ranks"]
    assert first["gpu_unmeasured_ns"] == 0 < second["gpu_unmeasured_ns"] < second["gpu_busy_ns"]


@pytest.mark.slow
def test_a_job_that_fails_keeps_what_was_measured(machine, tmp_path):
    out = tmp_path / "times.sqlite"
    script = tmp_path / "fails.py"
    script.write_text(
        "import torch\nx = torch.ones(64, 64, device='cuda')\n(x @ x).sum().item()\nraise SystemExit(3)\n"
    )
    done = machine(
        "profile", "--isolation", "none", "-o", out, "torchrun", "--nproc-per-node", 1, script
    )
    assert done.returncode == 1 and "the command failed" in done.stderr
    with Database.open(out) as database:
        assert sum(len(run.samples) for run in database.runs()) >= 3


@pytest.mark.slow
def test_a_job_without_a_leader_says_why(machine, tmp_path):
    script = tmp_path / "isolated.sh"
    script.write_text(f"exec {sys.executable} -I -c 'pass'\n")
    done = machine(
        *("profile", "--isolation", "none", "-o", tmp_path / "times.sqlite"),
        *("--report", tmp_path / "report.json", "--gpus-per-node", 1, "--", "sh", script),
    )
    assert (
        done.returncode == 70
        and "nothing was measured on rank 0: no process of the job became its leader" in done.stderr
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["exit_code"], report["failed_by"]) == (70, "launcher")
