"""GPU time whose record was made under other library versions, counted by the rank."""

import importlib.util
from pathlib import Path

import pytest

from phantora_ns.protocol import Source, SourceFlag
from phantora_ns.report.rank_stats import read_rank_stats

COPIES = """
import ctypes
lib = ctypes.CDLL(None)
buffer = ctypes.c_void_p()
assert lib.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(1 << 24)) == 0
for _ in range(3):
    assert lib.cudaMemsetAsync(buffer, 0, ctypes.c_size_t(1 << 24), None) == 0
assert lib.cudaDeviceSynchronize() == 0
"""


def recording_hub():
    path = Path(__file__).with_name("recording_hub.py")
    spec = importlib.util.spec_from_file_location("recording_hub_of_elsewhere", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RecordingHub


@pytest.mark.parametrize("flag", (0, SourceFlag.ELSEWHERE))
def test_the_flag_counts_time_and_leaves_the_source(run_python, run_dir, flag):
    with recording_hub()(run_dir, duration_ns=5000, source=Source.EXACT | flag):
        run_python(COPIES)
    (stats,) = [read_rank_stats(path) for path in (run_dir / "ranks").iterdir()]
    assert stats.busy_ns[Source.EXACT] == sum(stats.busy_ns) == 15_000
    assert stats.elsewhere_ns == (15_000 if flag else 0)
