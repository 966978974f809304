"""Why it exists: what is charged of measured host time must not depend on how slow or busy the
machine is, and the pace of hosts must be the distribution that was measured, in every run again."""

import ctypes
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from phantora_ns.kernels.database import host_samples
from phantora_ns.kernels.database.host_samples import Reference, samples_of
from phantora_ns.launch.record import host_probe
from phantora_ns.launch.record.host_speed import HostSpeed

PROBE_NS, AGAIN_NS, EARLY_NS = 3_000_000, 2_000_000, 300_000
REFERENCE = Reference(PROBE_NS, AGAIN_NS, EARLY_NS)
"""What the probe's two passes take on the reference machine, and how much of a time is as the first."""
ROOT = Path(__file__).parents[2]
FLAGS = ["-std=gnu11", f"-I{ROOT}/libintercept", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
HARNESS = """
#include "base/api.h"
#include "base/environment.h"
#include "base/log.h"
#include "time/host_pace.h"
#include "time/host_samples.h"
#include <stdlib.h>
void ph_die(const char *format, ...) { (void)format, abort(); }
const char *ph_env(const char *name) { return (void)name, getenv("SAMPLES_DIR"); }
PH_EXPORT void map(void) { ph_host_samples_map(); }
PH_EXPORT void another_process(void) { ph_host_samples_forget(); }
PH_EXPORT int64_t add(uint64_t key, uint64_t ns, uint64_t table_ns, uint32_t number, int cold)
{
    struct ph_host_sample sample = {key, ns, table_ns, number, cold};
    uint64_t charge;
    bool measured = ph_host_samples_add(&sample, &charge);
    return measured ? (int64_t)charge : -(int64_t)charge;
}
static struct ph_host_pace pace;
PH_EXPORT double start(void) { return ph_host_pace_start(&pace), pace.process; }
PH_EXPORT double join(uint64_t rank, uint64_t ranks)
{
    return ph_host_pace_join(&pace, rank, ranks), pace.process;
}
PH_EXPORT double go(uint64_t ns) { return ph_host_pace(&pace, ns); }
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    (folder / "harness.c").write_text(HARNESS)
    parts = ("time/host_samples", "time/host_pace", "base/hash_map", "base/map_file")
    sources = [ROOT / "libintercept" / f"{name}.c" for name in parts]
    library = folder / "harness.so"
    subprocess.run(["cc", *FLAGS, "-o", library, folder / "harness.c", *sources], check=True)
    return library


@pytest.fixture
def harness(built, tmp_path, monkeypatch):
    """A library of its own for each test, over an empty file."""
    library = tmp_path / "harness.so"
    library.write_bytes(built.read_bytes())
    host_samples.make_samples(tmp_path, REFERENCE)
    monkeypatch.setenv("SAMPLES_DIR", str(tmp_path))
    loaded = ctypes.CDLL(str(library))
    loaded.add.restype = ctypes.c_int64
    loaded.add.argtypes = [ctypes.c_uint64] * 3 + [ctypes.c_uint32, ctypes.c_int]
    loaded.start.restype = loaded.join.restype = loaded.go.restype = ctypes.c_double
    loaded.join.argtypes = [ctypes.c_uint64] * 2
    loaded.go.argtypes = [ctypes.c_uint64]
    loaded.map()
    speed = HostSpeed(tmp_path)

    def probed(slower, again=None):
        """The probe's passes take so many times as long as on the reference machine."""
        passes = slower * PROBE_NS, (again or slower) * AGAIN_NS
        monkeypatch.setattr(host_probe, "probe", lambda: host_probe.Passes(*map(round, passes)))
        speed.look()

    loaded.probed = probed
    return loaded


def job(harness, slower, noise):
    """What is charged of 40 call sites, with probes between them. This machine takes `slower` times as
    long; a part of the samples takes up to `noise` times longer."""
    draw, charged = random.Random(5), {}

    def here(time):
        return round(time * slower * (draw.uniform(1, noise) if draw.random() < 0.5 else 1))

    for number in range(40):
        for site in range(40):
            if site % 10 == 0:
                harness.probed(here(1e6) / 1e6)
            time = 2000 * (1 + site)
            charged[site] = harness.add(1000 + site, here(time), 0, number, 0) / time
    return charged


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("noise", [1.0, 2.5])
def test_a_slow_or_busy_machine_is_charged_the_same(harness, slower, noise):
    charged = job(harness, slower, noise)
    assert statistics.mean(charged.values()) == pytest.approx(1, abs=0.03)
    # the standard error of a mean of 32 samples is 6 % at the larger noise
    assert all(0.8 < ratio < 1.2 for ratio in charged.values())


def test_what_comes_after_much_more_work_is_charged_that_work(harness, tmp_path):
    for number in range(10):
        work = 40_000_000 if number in (3, 8) else 20_000
        charge = harness.add(7, work, 0, number, 0)
        assert charge == work
    found = samples_of(tmp_path)
    assert found.sites == {7: 20_000} and found.seldom == {7: (40_000_000, 3, 5, 0xFFFFFFFF)}
    assert found.speed == (1, 1) and found.lost == 0


def test_what_each_process_does_once_does_not_come_again(harness, tmp_path, monkeypatch):
    """Eight ranks that each load a library at their third call are not one that loads every fifth."""
    for rank in range(8):
        harness.another_process()
        monkeypatch.setenv("RANK", str(rank))
        for number in range(1, 6):
            harness.add(7, 40_000_000 if number == 3 else 20_000, 0, number, 0)
    assert samples_of(tmp_path).seldom == {7: (40_000_000, 3, 0, 0xFF)}


def test_work_of_one_rank_is_that_rank_s(harness, tmp_path, monkeypatch):
    """Rank 2 writes a checkpoint every fourth step; ranks beside it do not."""
    for rank in range(4):
        harness.another_process()
        monkeypatch.setenv("RANK", str(rank))
        for number in range(1, 12):
            seldom = rank == 2 and number % 4 == 0
            harness.add(7, 40_000_000 if seldom else 20_000, 0, number, 0)
    assert samples_of(tmp_path).seldom == {7: (40_000_000, 4, 4, 1 << 2)}


def test_an_interruption_is_charged_to_nobody(harness):
    times = (3200, 3200, 900_000, 3200)
    assert [harness.add(7, ns, 0, number, 0) for number, ns in enumerate(times)] == [3200] * 4


def test_other_samples_count_by_their_mean(harness):
    """The same operators may have other code around them: what is charged adds up to what was measured."""
    times = [3200, 1600, 16_000] * 8
    charged = [harness.add(7, ns, 0, number, 0) for number, ns in enumerate([1600, *times])]
    assert charged[-1] == pytest.approx(statistics.mean(times), abs=16)


def test_the_first_sample_of_each_process_gives_way_to_others(harness):
    assert harness.add(7, 40_000, 0, 0, 0) == 40_000
    assert harness.add(7, 40_000, 0, 0, 0) == 40_000, "another process"
    assert harness.add(7, 3200, 0, 1, 0) == 3200
    assert harness.add(7, 30_000, 0, 0, 0) == 3200


def test_of_a_call_site_that_the_table_knows_the_first_sample_does_not_count(harness):
    """It includes loading what later ones find loaded."""
    assert harness.add(7, 900_000, 4000, 0, 0) == 0
    assert harness.add(7, 3200, 4000, 1, 0) == 3200, "and the table may be of other code"


def test_samples_with_cold_caches_do_not_count_beside_others(harness):
    numbers = iter(range(1, 100))

    def add(ns, cold):
        return harness.add(7, ns, 0, next(numbers), cold)

    assert [add(ns, True) for ns in (8000, 8000, 4000)] == [8000, 8000, 6000], "the first gives way"
    assert [add(3200, False) for _ in range(8)][-1] == 3200
    assert add(9600, True) == 3200


def test_one_odd_sample_does_not_stand_for_many_after_a_wait(harness):
    """A call site that comes after waits was charged 21.9 ms at each of sixty occurrences, the time of one."""
    times = [1_440_000] * 20 + [21_900_000] + [1_440_000] * 60
    charged = [harness.add(7, ns, 0, n, ns < 20_000_000) for n, ns in enumerate(times, 1)]
    assert charged[-1] == pytest.approx(1_440_000, rel=0.5)


def test_the_probe_is_no_call_site_and_gives_the_speed(harness, tmp_path):
    harness.add(7, 3200, 0, 0, 0)
    harness.probed(2)
    assert harness.add(7, 3200, 0, 1, 0) == 1600
    found = samples_of(tmp_path)
    assert found.sites == {7: 1600} and found.speed == (0.5, 0.5)


def test_short_work_is_as_slow_as_the_first_pass_and_long_work_as_the_second(harness, tmp_path):
    """Here the caches are twice as full of other things, and else nothing is slower."""
    harness.probed(2, 1)
    wanted = {8000: 4000, EARLY_NS: EARLY_NS // 2, 20_000_000: 20_000_000 - EARLY_NS // 2}
    for site, (ns, charged) in enumerate(wanted.items(), 7):
        assert harness.add(site, ns, 0, 0, 0) == charged
        assert harness.add(site, ns, 0, 1, 0) == charged
    assert harness.add(7, 40_000_000, 0, 2, 0) == 40_000_000 - EARLY_NS // 2
    found = samples_of(tmp_path)
    assert found.sites == dict(enumerate(wanted.values(), 7)), "what later runs are charged"
    assert found.seldom[7][0] == 40_000_000 - EARLY_NS // 2


def test_the_probe_s_samples_from_before_the_first_rank_measured_give_way(
    tmp_path, monkeypatch, built
):
    """Until then there is another load: ranks that import, or nothing yet."""
    host_samples.make_samples(tmp_path, REFERENCE)
    monkeypatch.setenv("SAMPLES_DIR", str(tmp_path))
    times = iter([8, 2, 4, 100])
    monkeypatch.setattr(
        host_probe,
        "probe",
        lambda: host_probe.Passes((slower := next(times)) * PROBE_NS, slower * AGAIN_NS),
    )
    speed, found = HostSpeed(tmp_path), []
    for rank_measures in (False, True, True, True):
        if rank_measures and len(found) == 1:
            ctypes.CDLL(str(built)).map()
        speed.look()
        found.append(samples_of(tmp_path).speed)
    for speeds in zip(*found, strict=True):
        assert speeds == pytest.approx([1 / 8, 1 / 2, 1 / 3, 1 / 3]), "the last is an interruption"


SMALL = """
import os, sys
from pathlib import Path
from phantora_ns.kernels.database import host_samples as of
here = Path(sys.argv[1])
try:
    of.make_samples(here, of.Reference(1, 1))
except OSError as error:
    sys.exit(error.strerror)
file = here / of.HOST_SAMPLES_FILE
assert file.stat().st_blocks * 512 >= file.stat().st_size, "a sparse file: a full disk would kill who writes"
print(of.HostSamplesHeader.unpack(file.read_bytes()).capacity)
"""


@pytest.mark.parametrize(
    "size, said", [("1g", "65536"), ("2m", "4096"), ("64k", "No space left on device")]
)
def test_the_file_has_real_blocks_and_as_many_slots_as_there_is_room_for(tmp_path, size, said):
    mount = f'mount -t tmpfs -o size={size} none "{tmp_path}" && exec "$0" -c "$1" "{tmp_path}"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, sys.executable, SMALL], capture_output=True, text=True
    )
    assert (done.stdout + done.stderr).strip() == said


def test_the_probe_is_work():
    """Twenty-one tasks take more than 0.1 ms on any machine, each time."""
    assert min(host_probe.probe()) > 100_000


def test_samples_without_room_are_counted_and_charge_nothing(harness, tmp_path):
    """64 keys that start at one slot fill all that are tried."""
    step = host_samples.CAPACITY
    for number in range(64):
        assert harness.add(1 + step * number, 1600, 0, 0, 0) == 1600
    assert harness.add(1 + step * 64, 1600, 0, 0, 0) == 0
    assert samples_of(tmp_path).lost == 1


def paces(harness, monkeypatch, rank, ranks, count=2000, step_ns=1_500_000):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    process = harness.start()
    return process, [harness.go(step_ns) / process for _ in range(count)]


def test_one_rank_has_the_middle_pace_and_varies_as_measured(harness, monkeypatch):
    process, seen = paces(harness, monkeypatch, 0, 1)
    assert process == 1
    assert statistics.mean(seen) == pytest.approx(1, abs=0.02)
    assert statistics.stdev(seen) == pytest.approx(0.09, abs=0.015)
    assert statistics.correlation(seen[:-1], seen[1:]) > 0.8
    assert abs(statistics.correlation(seen[:-30], seen[30:])) < 0.2
    assert paces(harness, monkeypatch, 0, 1) == (process, seen), "it repeats"


@pytest.mark.parametrize("ranks", [2, 3, 8, 10, 24, 64])
def test_ranks_have_the_expected_values_of_a_sample_in_order(harness, monkeypatch, ranks):
    found = sorted(paces(harness, monkeypatch, rank, ranks, 0)[0] for rank in range(ranks))
    normal = statistics.NormalDist(0, 0.1)
    draw = random.Random(7)
    samples = [
        sorted(normal.inv_cdf(draw.random()) for _ in range(ranks)) for _ in range(60_000 // ranks)
    ]
    wanted = [math.exp(statistics.mean(values)) for values in zip(*samples, strict=True)]
    assert found == pytest.approx(wanted, rel=0.01)


def test_the_mean_of_a_short_run_is_the_middle(harness, monkeypatch):
    """Half a second of host time, four times as long as the pace is remembered. Independent values
    would vary by 0.045."""
    means = []
    for rank in range(64):
        process, seen = paces(harness, monkeypatch, rank, 64, 48)
        means.append(statistics.mean(seen))
    assert statistics.stdev(means) < 0.035


def test_spawned_ranks_are_placed_by_their_first_communicator(harness, monkeypatch):
    """torch.multiprocessing.spawn and MPI set no RANK."""
    placed = [paces(harness, monkeypatch, rank, 8, 1) for rank in range(8)]
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    for rank, wanted in enumerate(placed):
        assert harness.start() == 1, "the middle pace until then"
        assert harness.join(0, 1) == 1, "a communicator of one says nothing"
        process = harness.join(rank, 8)
        assert (process, [harness.go(1_500_000) / process]) == wanted
        assert harness.join(0, 2) == process, "only the first counts"


def test_the_environment_says_more_than_a_communicator(harness, monkeypatch):
    process, _ = paces(harness, monkeypatch, 5, 8, 0)
    assert harness.join(0, 2) == process


def test_ranks_vary_independently(harness, monkeypatch):
    first, second = (paces(harness, monkeypatch, rank, 2)[1] for rank in range(2))
    assert abs(statistics.correlation(first, second)) < 0.25


def test_a_load_that_comes_in_the_middle_changes_little(harness):
    late = []
    for number in range(400):
        slower = 2 if number >= 200 else 1
        for site in range(20):
            if site % 10 == 0:
                harness.probed(slower)
            time = 2000 * (1 + site)
            charge = harness.add(1000 + site, time * slower, 0, number, 0)
            if number >= 300:
                late.append(charge / time)
    assert statistics.mean(late) == pytest.approx(1, abs=0.05)
