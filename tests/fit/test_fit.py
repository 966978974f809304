"""Why it exists: `phantora-ns fit` answers in seconds what a whole run would, and out of memory is an
answer. Its numbers are held against those of whole runs."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phantora_ns.config import load_gpu
from phantora_ns.report.fit import Fit, Need, advice, lines_of
from tests.interruptible import interruptible

GIB = 2**30
JOB = [sys.executable, Path(__file__).parent / "jobs" / "train.py"]
ONE = ["--gpus-per-node", 1]
TUTORIAL = "examples/tutorial/train.py"


@pytest.fixture
def fit(phantora, built_library):
    def run(*words, code, **options):
        done = phantora("fit", *words, **options)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.nightly), "fsdp"])
def test_the_first_steps_need_what_a_whole_run_needs(fit, phantora, tmp_path, parallel):
    command = ["torchrun", "--nproc-per-node", 2, TUTORIAL, "--parallel", parallel]
    command += ["--width", 256, "--layers", 3, "--sequence", 128]
    found = json.loads(fit("--json", *command, code=0).stdout)
    file = tmp_path / "report.json"
    whole = phantora("--quiet", "--host-time", "none", "--report", file, *command, "--steps", 9)
    assert whole.returncode == 0, whole.stderr
    for need, rank in zip(found["needs"], json.loads(file.read_text())["ranks"], strict=True):
        assert need["in_use_bytes"] == rank["peak_driver_bytes"]
        assert need["reserved_bytes"] == rank["peak_reserved_bytes"]
        assert need["allocated_bytes"] == rank["peak_allocated_bytes"]
    assert found["fits"] is True and "ended after" in found["ended"]
    assert found["free_bytes"] == found["memory_bytes"] - max(
        n["in_use_bytes"] for n in found["needs"]
    )


def test_what_is_in_use_is_what_the_gpu_says(fit, phantora, tmp_path):
    """cudaMemGetInfo counts the CUDA context, which no allocation asked for."""
    found = json.loads(fit("--json", *ONE, "--", *JOB, code=0).stdout)
    (need,) = found["needs"]
    assert need["in_use_bytes"] == need["reserved_bytes"] + load_gpu("h200").context_bytes


def test_a_job_that_does_not_fit_is_told_how_much_is_missing(fit):
    """64 GiB of weights, their gradients, and two states of the optimizer."""
    log = fit("--json", *ONE, "--", *JOB, "--weights", 64 << 10, code=1)
    found = json.loads(log.stdout)
    assert "Traceback" not in log.stderr and "failed" not in log.stderr
    (refused,) = found["refused"]
    assert (refused["rank"], refused["step"]) == (0, 1)
    assert refused["asked_bytes"] > refused["free_bytes"]
    (need,) = found["whole"]
    assert need["allocated_bytes"] >= 4 * 64 * GIB
    assert found["free_bytes"] == found["memory_bytes"] - need["in_use_bytes"] < -100 * GIB
    said = fit(*ONE, "--", *JOB, "--weights", 64 << 10, code=1)
    assert said.stdout.startswith(
        "does not fit 139.80 GiB of NVIDIA H200: in step 1 rank 0 asked for 64.00 GiB when "
    )
    assert (
        "too much (" in said.stdout
        and "in vain" not in said.stdout
        and "\nto change: " in said.stdout
    )


@pytest.mark.nightly
def test_it_says_the_same_each_time(fit):
    words = ["--json", "torchrun", "--nproc-per-node", 2, TUTORIAL, "--width", 128, "--layers", 1]
    assert fit(*words, code=0).stdout == fit(*words, code=0).stdout


def test_it_goes_on_while_memory_grows(fit):
    words = ["--json", *ONE, "--", *JOB, "--steps", 30, "--leak", 64]
    found = json.loads(fit(*words, "--leak-until", 7, code=0).stdout)
    assert found["ended"].startswith("ended after 10 steps: no rank's memory grew in the last ")
    found = json.loads(fit(*words, code=0).stdout)
    assert found["ended"].startswith("ended after 20 steps: memory still grew in step 20")


def test_the_user_names_the_step(fit, tmp_path):
    words = ["--steps", 2, "--log", tmp_path / "log", *ONE, "--", *JOB, "--leak", 64]
    assert (
        "ended after 2 steps, as asked: memory still grew in step 2" in fit(*words, code=0).stdout
    )
    assert (tmp_path / "log").read_text().splitlines()[-1] == "step 1"


def test_a_job_that_tells_no_steps_runs_to_its_end(fit, tmp_path):
    log = tmp_path / "log"
    done = fit("--log", log, *ONE, "--", *JOB, "--steps", 2, "--without-optimizer", code=0)
    assert "the job ran to its end: the job tells no steps" in done.stdout
    assert "the end" in log.read_text()


def test_a_job_that_goes_on_without_what_was_refused_fits(fit, tmp_path):
    log = tmp_path / "log"
    fit("--log", log, *ONE, "--", *JOB, "--caught", 200 << 10, code=0)
    assert "went on without" in log.read_text()


def test_a_run_that_its_user_ends_did_not_run_out_of_memory(tmp_path, root):
    """Though its last request in vain was never granted."""
    file = tmp_path / "report.json"
    words = ["--report", file, *ONE, "--", *JOB, "--steps", 10**6, "--caught", 200 << 10]
    process = subprocess.Popen(
        [sys.executable, "-m", "phantora_ns.cli", *map(str, words)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    while process.stdout.readline() != "step 3\n":
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "SIGINT: ending the job" in err
    assert re.search(r"ended by Ctrl-C after \d+ steps", err) and "out of memory" not in err
    report = json.loads(file.read_text())
    assert (report["exit_code"], report["failed_by"], report["ended_by"]) == (130, None, "SIGINT")
    assert report["ranks"][0]["refused_bytes"] == 200 * GIB and not report["out_of_memory"]


def test_another_failure_is_no_answer(fit):
    done = fit(*ONE, "--", *JOB, "--fail-in", 2, code=3)
    assert done.stdout == "" and "ValueError: the job's own failure" in done.stderr
    assert done.stderr.endswith("messages are above; rank 0: ValueError: the job's own failure\n")
    assert "whether it fits is not known: the command failed with exit code 1" in done.stderr


@pytest.mark.parametrize(
    "words, said",
    [
        (["--steps", "0", "true"], "Invalid value for '--steps'"),
        (["--leaders", "0", "true"], "--leaders needs whole runs"),
        (["--cluster", "h2000", "true"], "no such cluster"),
        ([], "no command"),
    ],
)
def test_bad_input_is_one_line(fit, words, said):
    done = fit(*words, code=2)
    assert done.stdout == "" and done.stderr.count("\n") == 1 and said in done.stderr


def need(rank, in_use, reserved, allocated):
    return Need(rank, 0, in_use * GIB, reserved * GIB, allocated * GIB)


def test_advice_follows_from_the_numbers():
    evenly = [need(0, 160, 158, 155), need(1, 160, 158, 155)]
    lines = advice(140 * GIB, evenly, False, {"b200": 178 * GIB, "b300": 288 * GIB})
    assert lines[0].startswith("12% less per GPU")  # 20 of 160
    assert lines[1] == "a GPU with more memory: --set gpu=b200 (178.00 GiB), or b300 (288.00 GiB)"
    pieces = advice(140 * GIB, [need(0, 160, 158, 130)], False, {})
    assert "expandable_segments:True" in pieces[0] and "132.00 GiB" in pieces[0]
    assert not any(
        "expandable" in line for line in advice(140 * GIB, [need(0, 160, 158, 130)], True, {})
    )
    unevenly = advice(140 * GIB, [need(0, 160, 158, 155), need(1, 90, 88, 80)], True, {})
    assert "rank 0 needs 35.00 GiB more than half of them" in unevenly[0]


def test_what_held_the_peak_is_said_with_what_to_change():
    held = {
        "rank": 1,
        "peak_bytes": 100 * GIB,
        "held": [
            ["activations", "layers.0.mlp", 40 * GIB],
            ["activations", "layers.1.mlp", 30 * GIB],
            ["parameters", "head", 30 * GIB],
        ],
    }
    need = Need(1, 0, 120 * GIB, 110 * GIB, 100 * GIB)
    said = advice(90 * GIB, [need], False, {}, held)
    assert said[-1].endswith(
        "; activations and all else were 70.00 GiB of the peak, "
        "parameters, gradients and states of the optimizer 30.00 GiB"
    )
    lines = lines_of(Fit(False, "GPU", 90 * GIB, "ended", (), whole=(need,), held=held))
    at = lines.index(
        "at the peak of 100.00 GiB on rank 1: activations 70.00 GiB, parameters 30.00 GiB"
    )
    assert lines[at + 1 : at + 3] == [
        "  70.00 GiB (70%) activations: layers.*.mlp (2 modules)",
        "  30.00 GiB (30%) parameters: head",
    ]


@pytest.mark.nightly
def test_what_holds_the_memory_is_named(fit):
    """The weights' matrix is one layer, so parameters, gradients and states are what can be sharded."""
    words = [*ONE, "--memory-modules", "--", *JOB, "--weights", 64 << 10]
    found = json.loads(fit("--json", *words, code=1).stdout)
    held = {(kind, module): size for kind, module, size in found["held"]["held"]}
    assert held["parameters", "Linear"] == held["gradients", "Linear"] == 64 * GIB
    assert held["optimizer states", "Linear"] == 128 * GIB
    (need,) = found["whole"]
    assert sum(held.values()) == found["held"]["peak_bytes"] == need["allocated_bytes"]
    advice = next(line for line in found["advice"] if "less per GPU" in line)
    assert (
        "; parameters, gradients and states of the optimizer were 256.00 GiB of the peak" in advice
    )
