"""Why it exists: an interpreter that ends writes to all the memory that it shares with its image, so only
a few ranks of a run may end at a time, however many wait for it, and however long that takes."""

import subprocess
import sys
import time

from tests.conftest import ROOT

ENDS = """
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("ours", sys.argv[1])
ours = importlib.util.module_from_spec(spec)
sys.modules["ours"] = ours
spec.loader.exec_module(ours)
ours._END_WAIT_S = float(sys.argv[2])
told = []
ours._end_in_turn(lambda: told.append(True), time.sleep)
begin = time.monotonic()
time.sleep(float(sys.argv[3]))
print(begin, time.monotonic(), len(told))
"""


def ending(run_dir, wait_s, lasts_s):
    (run_dir / "warm").mkdir(exist_ok=True)
    ours = ROOT / "phantora_ns/startup/sitecustomize.py"
    return subprocess.Popen(
        [sys.executable, "-S", "-c", ENDS, str(ours), str(wait_s), str(lasts_s)],
        env={"PHANTORA_RUN_DIR": str(run_dir)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_no_more_than_four_end_at_a_time(tmp_path):
    """Five times four of them take 2.5 s, longer than anybody waits while nothing changes."""
    ranks = [ending(tmp_path, wait_s=1.5, lasts_s=0.5) for _ in range(20)]
    spans = [tuple(map(float, rank.communicate()[0].split())) for rank in ranks]
    for begin, _, _ in spans:
        assert sum(other <= begin < end for other, end, _ in spans) <= 4
    # the first four find a free place; each of the others has to wait, and tells the hub once
    assert [told for _, _, told in sorted(spans)] == [0] * 4 + [1] * 16


def test_nobody_waits_for_ever_for_those_that_do_not_end(tmp_path):
    stuck = [ending(tmp_path, wait_s=1, lasts_s=60) for _ in range(4)]
    try:
        while len(list((tmp_path / "warm").glob("end-*"))) < 4:
            time.sleep(0.01)
        time.sleep(1)
        begin, end, _ = map(float, ending(tmp_path, wait_s=1, lasts_s=0).communicate()[0].split())
        assert begin <= end and all(rank.poll() is None for rank in stuck)
    finally:
        for rank in stuck:
            rank.kill()
            rank.communicate()
