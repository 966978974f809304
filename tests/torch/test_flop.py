"""Why it exists: HFU is a count of arithmetic, and PyTorch has a counter of its own. It sees operators,
and the report sees what they launch: products, convolutions, and attention by every backend, forward and
backward."""

import json
import re

import pytest

from tests.torch.outcome import JOBS


def test_the_report_counts_what_pytorchs_own_counter_does(phantora, tmp_path):
    path = tmp_path / "report.json"
    command = ("--host-time", "none", "--report", path, "torchrun", JOBS / "flop.py")
    done = phantora(*command)
    assert done.returncode == 0, done.stderr
    counted = int(re.search(r"COUNTED (\d+)", done.stdout)[1])
    report = json.loads(path.read_text())
    found = report["arithmetic"]
    assert found["uncounted"] == {"launches": 0, "time_share": 0.0, "kernels": []}
    by_precision = found["flop"]
    assert sum(by_precision.values()) == counted
    assert by_precision.keys() == {"bf16", "fp32"}
    assert 2 * 2 * 48 * 96 * 160 <= by_precision["fp32"] < counted / 10
    step_ns = report["step"]["mean_ns"]
    at_peak_ns = by_precision["bf16"] / 989_400 + by_precision["fp32"] / 67_000
    assert found["hfu"] == pytest.approx(at_peak_ns / step_ns, rel=1e-3)
    assert re.search(rf"HFU {found['hfu']:.1%}: 0.1\d* TFLOP a step in bf16, ", done.stderr)
