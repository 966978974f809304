"""Why it exists: small device values must be real, on one rank and between ranks; large ones must
be zero, without old bytes. The programs run as a user's would; each prints one JSON line that the
tests here check."""

import json
import sys
from pathlib import Path

import pytest

import tests.values.battery as battery

HERE = Path(__file__).resolve().parent


def outcome(done, word):
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(word)]
    assert len(lines) == 1, done.stdout + done.stderr
    return json.loads(lines[0])


@pytest.fixture(scope="module")
def battery_outcome(phantora):
    return outcome(
        phantora(
            "--quiet",
            "--nnodes",
            1,
            "--gpus-per-node",
            1,
            "--",
            sys.executable,
            HERE / "battery.py",
        ),
        "BATTERY",
    )


@pytest.mark.parametrize("name", [*battery.CASES, "large_results", "random_results"])
def test_small_operators_give_the_bits_that_the_cpu_gives(battery_outcome, name):
    assert battery_outcome[name] == []


def test_values_travel_between_ranks(phantora):
    assert (
        outcome(
            phantora(
                "--quiet", "torchrun", "--nnodes", 2, "--nproc-per-node", 2, HERE / "exchange.py"
            ),
            "EXCHANGE",
        )
        == []
    )
