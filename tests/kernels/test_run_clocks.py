"""The clock of runs that no GPU file names.

The oracle: a run of the shipped database, whose clock is known, recorded again under another name, on a
GPU that is slower by a known share.
"""

import pytest
from recorded import gemm, kernel, record

from phantora_ns.config import load_gpu
from phantora_ns.kernels import signature
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.live_times import Learned
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import BoundBy

POWER = load_gpu("h200").power
SHIPPED = databases.shipped_path("h200")
COOL, HOT = "3483e7a47fb51785", "825984f4f8ba17e1"  # 1b-pp2-8k, 13b-fsdp-2k-mbs4-ac


@pytest.fixture(scope="module")
def runs():
    """Samples of runs of the shipped database: (kind, fields, median)."""
    with Database.open(SHIPPED) as database:
        return {
            run.uid: [
                (*signature.decode(data), sample.statistics.median)
                for data, sample in run.samples.items()
                if not sample.first
            ]
            for run in database.runs()
            if run.uid in (COOL, HOT)
        }


def again(path, samples, slower, uid="mine"):
    entries = [(kind, fields, None, [round(ns * slower)]) for kind, fields, ns in samples]
    return record(path, *entries, uid=uid)


def share(times, bound_by):
    return times.clocks.share(bound_by, "mine")


@pytest.mark.parametrize(("uid", "slower"), [(HOT, 1.0), (HOT, 1.08), (COOL, 1.1)])
def test_a_hot_runs_clock_is_that_of_its_products(tmp_path, runs, uid, slower):
    path = again(tmp_path / "mine.sqlite", runs[uid], slower)
    times = KernelTimes("h200", [path, SHIPPED])
    clock = POWER.recorded_in[BoundBy.COMPUTE][uid] / slower
    assert share(times, BoundBy.COMPUTE) == pytest.approx(
        clock / POWER.recorded[BoundBy.COMPUTE], rel=0.02
    )
    assert share(times, BoundBy.ATTENTION) == pytest.approx(
        clock / POWER.recorded[BoundBy.ATTENTION], rel=0.02
    )
    assert share(times, BoundBy.MEMORY) == 1


def test_a_cool_runs_attention_has_a_clock_of_its_own(tmp_path, runs):
    """Its products gain nothing above 1,785 MHz; attention does."""
    path = again(tmp_path / "mine.sqlite", runs[COOL], 1.0)
    times = KernelTimes("h200", [path, SHIPPED])
    assert share(times, BoundBy.ATTENTION) == pytest.approx(
        POWER.recorded_in[BoundBy.ATTENTION][COOL] / POWER.recorded[BoundBy.ATTENTION], rel=0.03
    )


def test_what_only_the_run_holds_is_brought_to_the_usual_clock(tmp_path, runs):
    """Also in models that are fitted to it."""
    own = gemm(m=12345)
    times = {}
    for slower in (1.0, 1.1):
        samples = [*runs[HOT], (1, own, 2_000_000)]
        path = again(tmp_path / f"{slower}.sqlite", samples, slower)
        found = KernelTimes("h200", [path, SHIPPED])
        times[slower] = found.lookup(1, own)[0], found.lookup(1, gemm(m=12300))[0]
    assert times[1.1] == pytest.approx(times[1.0], rel=0.003)


@pytest.mark.parametrize("shared", [0, 2])
def test_without_shared_products_the_clock_is_the_usual_one(tmp_path, runs, shared):
    products = [s for s in runs[HOT] if s[0] == 1 and s[2] > 1e6]
    path = again(tmp_path / "mine.sqlite", [*products[:shared], (1, gemm(m=12345), 1e6)], 1.3)
    times = KernelTimes("h200", [path, SHIPPED])
    assert share(times, BoundBy.COMPUTE) == 1
    assert KernelTimes("h200", [path]).clocks.share(BoundBy.COMPUTE, "mine") == 1


def test_products_of_zeros_do_not_make_a_clock_beyond_the_highest(tmp_path, runs):
    path = again(tmp_path / "mine.sqlite", runs[HOT], 0.7)
    times = KernelTimes("h200", [path, SHIPPED])
    highest = POWER.highest / POWER.recorded[BoundBy.COMPUTE]
    assert share(times, BoundBy.COMPUTE) == pytest.approx(highest)


def test_a_leaders_clock_is_that_of_what_is_recorded_already(runs):
    """What it measures on a hot GPU, and nobody has recorded, comes out as on the usual one."""
    own = gemm(m=12345)
    times = KernelTimes("h200", [SHIPPED])
    assert times.learn(1, own, [3_000_000]) is Learned.THIS
    assert times.lookup(1, own)[0] == 3_000_000
    seen = {
        times.learn(kind, fields, [round(times.lookup(kind, fields)[0] * 1.1)])
        for kind, fields, ns in runs[HOT]
        if kind == 1
    }
    assert seen == {Learned.NOTHING, Learned.ALL}
    assert times.lookup(1, own)[0] == pytest.approx(3_000_000 / 1.1, rel=0.006)
    assert times.learn(0, kernel(), [5_000_000]) is Learned.THIS
    assert times.lookup(0, kernel())[0] == 5_000_000


def test_a_leader_on_the_usual_clock_leaves_products_as_measured(runs):
    times = KernelTimes("h200", [SHIPPED])
    times.learn(1, gemm(m=12345), [3_000_000])
    for kind, fields, _ in runs[HOT]:
        if kind == 1:
            times.learn(kind, fields, [times.lookup(kind, fields)[0]])
    assert times.lookup(1, gemm(m=12345))[0] == 3_000_000
