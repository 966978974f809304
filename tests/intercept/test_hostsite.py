"""Why it exists: host time by the place in the program is charged call for call, and what one run
records another replays."""

import struct

import pytest

from phantora_ns.kernels.database.host_table import Here, HostRecord, Seldom, write_table
from phantora_ns.kernels.database import host_samples

HOST = 14
# enum ph_call of libintercept/base/host_calls.h, plus one: the keys of depth 0
UNKNOWN_NS, LAUNCH, RECORD = (
    7_000,
    1,
    7,
)
EXACT, BACKED_OFF, CLASS, UNKNOWN, CALL, LEARNED, MEASURED = range(7)


def page(run_dir):
    """(host_calls, host_ns) of the only process, whose page is removed; its clock is in the end of
    it."""
    (path,) = (run_dir / "ranks").iterdir()
    words = struct.unpack_from("<50Q", path.read_bytes())
    path.unlink()
    return words[32:40], (*words[40:48], words[2])


@pytest.fixture
def model(run_program, run_dir):
    """Runs c/timeline.c with host times of a record."""

    def run(record):
        write_table(run_dir / "host.tbl", record, UNKNOWN_NS)
        return run_program("timeline", PHANTORA_HOST_TIME="model").values

    return run


def test_calls_that_nothing_is_known_of_cost_the_constant(model, hub, run_dir, gpu):
    seen = model(HostRecord())
    calls, times = page(run_dir)
    assert calls[UNKNOWN] > 20 and calls[EXACT] == calls[BACKED_OFF] == calls[CLASS] == 0
    assert times[UNKNOWN] == calls[UNKNOWN] * UNKNOWN_NS and calls[CALL] >= calls[UNKNOWN]
    costs = gpu.host.call_ns
    assert times[CALL] >= 13 * costs["launch"] and times[CALL] % 10 == 0
    assert int(seen["ten"]) > 0


def test_a_class_is_charged_what_is_recorded_of_it_and_interruptions_are_spread(
    model, hub, run_dir
):
    model(HostRecord(sites={LAUNCH: 100.0, RECORD: 50.0}, interruption_ns=3.0))
    calls, times = page(run_dir)
    launches, records = 13, 6
    assert calls[CLASS] == launches + records
    assert times[CLASS] == launches * 103 + records * 53


def test_auto_measures_once_and_then_repeats(run_program, hub, run_dir):
    def run(here):
        write_table(run_dir / "host.tbl", HostRecord(), UNKNOWN_NS, here)
        return run_program("timeline", PHANTORA_HOST_TIME="auto").values, page(run_dir)

    host_samples.make_samples(run_dir, host_samples.Reference(1, 1))
    _, (calls, _) = run(Here(measures=True))
    assert calls[MEASURED] > 20 and sum(calls) == calls[MEASURED] + calls[CALL] + calls[UNKNOWN]
    assert calls[UNKNOWN] <= 1, "the first call of the process has no time before it"
    found = host_samples.samples_of(run_dir)
    assert len(found.sites) > 10 and found.lost == 0
    first = run(Here(found.sites, found.seldom))
    assert run(Here(found.sites, found.seldom)) == first
    calls = first[1][0]
    assert calls[LEARNED] > 20 and calls[MEASURED] == calls[BACKED_OFF] == 0


def test_what_the_first_calls_of_a_process_took_stands_for_no_other(run_program, hub, run_dir):
    """Their history is short, as is that by which a record stands for calls that it knows less of."""
    host_samples.make_samples(run_dir, host_samples.Reference(1, 1))
    write_table(run_dir / "host.tbl", HostRecord(), UNKNOWN_NS, Here(measures=True))
    run_program("timeline", PHANTORA_HOST_TIME="auto")
    page(run_dir)
    for key in host_samples.samples_of(run_dir).sites:
        write_table(run_dir / "host.tbl", HostRecord(), UNKNOWN_NS, Here({key: 10.0**9}))
        run_program("timeline", PHANTORA_HOST_TIME="auto")
        calls, _ = page(run_dir)
        assert calls[LEARNED] >= 1 and calls[BACKED_OFF] == 0


def test_what_happens_seldom_is_charged_at_its_occurrences(run_program, hub, run_dir):
    host_samples.make_samples(run_dir, host_samples.Reference(1, 1))
    write_table(run_dir / "host.tbl", HostRecord(), UNKNOWN_NS, Here(measures=True))
    run_program("timeline", PHANTORA_HOST_TIME="auto")
    page(run_dir)
    sites = host_samples.samples_of(run_dir).sites
    usual = {key: 1000.0 for key in sites}

    def charged(seldom, rank=0):
        write_table(run_dir / "host.tbl", HostRecord(), UNKNOWN_NS, Here(usual, seldom))
        run_program("timeline", PHANTORA_HOST_TIME="model", RANK=str(rank))
        return page(run_dir)[1][LEARNED]

    plain = charged({})
    more = {key: charged({key: Seldom(10**9, 0, 0, 1)}) - plain for key in list(sites)[:6]}
    assert set(more.values()) == {10**9 - 1000}, "once, in place of the usual time"
    every = {key: Seldom(10**9, 0, 1, 1 << 3) for key in sites}
    assert charged(every, rank=1) == plain, "it is rank 3's work"
    assert charged(every, rank=3) >= plain + 20 * (10**9 - 1000)


def test_a_run_repeats_to_the_nanosecond(model, hub, run_dir):
    record = HostRecord(sites={LAUNCH: 12_345.0})
    first = model(record), page(run_dir)
    assert (model(record), page(run_dir)) == first
    assert first[1][1][-1] >= 13 * 12_345, "the clock at the end"


def test_what_is_recorded_is_known_when_it_is_replayed(model, run_program, hub, run_dir):
    run_program(
        "timeline",
        PHANTORA_RECORD_HOST="1",
        PHANTORA_HOST_TIME="measured",
        PHANTORA_HOST_SCORE="5.5",
    )
    (message,) = hub.of(HOST)
    assert message[3]["score"] == 5.5
    sites = {site[0]: site for site in message[3]["sites"] if site[3]}
    assert sites[LAUNCH][2] == "launch" and 10 <= sites[LAUNCH][3] <= 14
    assert {site[1] for site in sites.values()} == set(range(5)), "call sites of every depth"
    assert all(0 <= s[4] < 10**9 for s in sites.values())
    page(run_dir)
    model(HostRecord(sites={key: site[4] for key, site in sites.items()}))
    calls, times = page(run_dir)
    assert calls[UNKNOWN] <= 1, (
        "the first call of a process has no time before it when it is measured"
    )
    assert calls[EXACT] >= 20 and calls[EXACT] > 4 * (calls[BACKED_OFF] + calls[CLASS])


def test_a_model_without_a_table_is_refused(run_program, hub):
    done = run_program("timeline", check=False, PHANTORA_HOST_TIME="model")
    assert (
        done.returncode == 70 and "host.tbl" in done.stderr and len(done.stderr.splitlines()) == 1
    )


AFTER_JOINING = """
import ctypes, sys
lib = ctypes.CDLL(None)
lib.phantora_elapsed_ns.restype = ctypes.c_uint64
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
identity, comm, buffer = Id(), ctypes.c_void_p(), ctypes.c_void_p()
assert lib.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(1 << 20)) == 0
assert lib.ncclGetUniqueId(ctypes.byref(identity)) == 0
assert lib.ncclCommInitRank(ctypes.byref(comm), 8, identity, int(sys.argv[1])) == 0
begin = lib.phantora_elapsed_ns()
for _ in range(500):
    assert lib.cudaMemsetAsync(buffer, 0, ctypes.c_size_t(8), None) == 0
print(lib.phantora_elapsed_ns() - begin)
"""


def test_spawned_ranks_differ_as_those_of_torchrun_do(run_python, hub, run_dir):
    """All ranks of torch.multiprocessing.spawn had one pace."""
    write_table(run_dir / "host.tbl", HostRecord(), UNKNOWN_NS, Here())

    def took(rank, **variables):
        done = run_python(AFTER_JOINING, rank, PHANTORA_HOST_TIME="auto", **variables)
        return int(done.stdout)

    spawned = [took(rank) for rank in (0, 5)]
    assert spawned == [took(rank, RANK=str(rank), WORLD_SIZE="8") for rank in (0, 5)]
    assert spawned[0] != spawned[1]
    means = {took(rank, PHANTORA_HOST_MEANS="1") for rank in (0, 5)}
    assert len(means) == 1, "--host-jitter mean"
