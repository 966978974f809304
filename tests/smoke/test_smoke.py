"""Why it exists: `make smoke` says in five minutes whether this torch works: every mode of the
example, one use of each part of CUDA's libraries, and a clean end each time.

Rule: nothing here depends on the version of torch. What is checked are laws, no printed constants.
"""

import json
import re
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.leftovers import MARK, assert_nothing_left, interfaces
from tests.torch.outcome import JOBS, Outcome, check_names

pytestmark = [pytest.mark.smoke, pytest.mark.slow]

HERE = Path(__file__).resolve().parent / "jobs"
MODES = ("ddp", "fsdp", "tp", "fsdp_tp")
STEPS = 3
STEP = re.compile(
    r"step +(\d+) +([\d.]+) ms +(\d+) tokens/s/GPU +MFU +([\d.]+)% +peak +([\d.]+) GiB +loss not computed"
)


@dataclass
class Ended:
    """A run that has ended, and its report."""

    done: CompletedProcess
    report: dict

    def complaints(self):
        """What a good run does not do."""
        output = self.done.stdout + self.done.stderr
        report = self.report
        wrong = [
            f"{name}: {report[name]}" for name in NOTHING if set(report[name] or ()) - RECORDED
        ]
        wrong += [
            line
            for line in output.splitlines()
            if "phantora-ns: warning" in line and not any(text in line for text in RECORDED)
        ]
        wrong += [found[0] for found in re.finditer(FAILURE, output, re.M)]
        wrong += [name for name in ("bad_messages", "expired_values") if report[name]]
        if self.done.returncode or report["exit_code"] or report["failed_by"]:
            wrong.append(f"exit code {self.done.returncode}, failed by {report['failed_by']}")
        return [*wrong, self.done.stderr[-4000:]] if wrong else []


NOTHING = ("unsupported_calls", "warnings", "guesses", "errors")
"""Fields of the report that are empty after a good run."""
FAILURE = r"^(\[rank\d+\]: ?)?Traceback|^.* is not supported: .*"
"""Not torchrun's own log, whose lines have a prefix: its agents may miss each other at the end, when
the one that holds the store is the first to leave."""
RECORDED = {
    "of host time is of call sites that no database holds",
    "kernel time recorded under the name of another PyTorch release",
}
"""What the report says of times that were recorded under another torch, as it should."""


def fail_with(complaints):
    """Shows all of them in full: a smoke test is all that is known of a version."""
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)


@pytest.fixture(scope="module")
def run(phantora):
    """Runs a job to its end, and proves that nothing of it is left."""

    def start(*arguments, **environment):
        folder = Path(tempfile.mkdtemp(prefix="ps-", dir="/tmp"))  # sockets need a short path
        mark, before = uuid.uuid4().hex, interfaces()
        report = folder / "report.json"
        try:
            done = phantora(
                "--report",
                report,
                *arguments,
                env={"TMPDIR": str(folder), "XDG_RUNTIME_DIR": "", MARK: mark, **environment},
            )
            assert_nothing_left(mark, folder, before)
            assert report.exists(), done.stderr
            return Ended(done, json.loads(report.read_text()))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return start


@pytest.fixture(scope="module")
def train(run, root):
    """Trains in a mode on 2 nodes with 2 ranks each; once, unless `again`."""
    kept = {}

    def start(mode, again=False):
        if mode in kept and not again:
            return kept[mode]
        kept[mode] = run(
            *("--host-time", "model", "torchrun", "--nnodes", 2, "--nproc-per-node", 2),
            *(root / "examples/train_llama.py", "--mode", mode, "--size", "debug"),
            *("--seq", 128, "--steps", STEPS),
        )
        return kept[mode]

    return start


@pytest.fixture(scope="module")
def features(run):
    """The job that uses one thing after another, on 2 ranks."""
    return run(
        *("--host-time", "none", "torchrun", "--nproc-per-node", 2, HERE / "features.py"),
        PYTHONPATH=str(JOBS),
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_trains(train, mode):
    ended = train(mode)
    fail_with(ended.complaints())
    assert "4 x NVIDIA H200" in ended.done.stdout
    lines = [tuple(map(float, found)) for found in STEP.findall(ended.done.stdout)]
    assert [line[0] for line in lines] == list(range(1, STEPS + 1)), ended.done.stdout
    for _, milliseconds, rate, mfu, peak in lines:
        assert milliseconds > 0 and rate > 0 and 0 <= mfu < 100 and 0 < peak < 141
    # what PyTorch says when the ranks end in an unlucky order does not come before the first step
    begin = ended.done.stderr.partition("TCPStore.cpp")[0]
    others = [line for line in begin.splitlines() if "phantora-ns: " not in line]
    before = ended.done.stdout.partition("step   1")[0].splitlines() + others
    assert len(before) <= 13, before  # make adds two lines to what a newcomer reads first
    ranks = ended.report["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(4))
    assert all(rank["gpu_busy_ns"] > 0 and rank["comm_ns"] > 0 for rank in ranks)


def test_a_run_repeats(train):
    """With modelled host time every line of the log and every time in the report is the same."""
    first, second = train("fsdp"), train("fsdp", again=True)
    assert STEP.findall(first.done.stdout) == STEP.findall(second.done.stdout)
    for name in ("simulated_ns", "kernel_time_share", "host_time"):
        assert first.report[name] == second.report[name]


@pytest.mark.parametrize("name", check_names("features", HERE))
def test_a_part_works(features, name):
    fail_with(Outcome(features.done, ranks=2).complaints(name))


def test_the_parts_end_well(features):
    fail_with(features.complaints())


def test_the_report_names_the_torch_that_ran(features):
    seen_by_ranks = Outcome(features.done, ranks=2).lines("TORCH")
    assert len(seen_by_ranks) == 2
    for seen in seen_by_ranks:
        assert seen["version"] == features.report["software"]["torch"]
        assert seen["cuda"] == features.report["software"]["cuda"]
        assert seen["nccl"] == features.report["software"]["nccl"]
