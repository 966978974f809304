"""Why it exists: what ranks charge as host time is what was recorded: weighted by counts, brought
to one machine's speed, found by key, and the same bytes for the same record."""

import struct
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.config import load_gpu
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.databases import merge
from phantora_ns.kernels.database.host_table import (
    INTERRUPTION_KEY,
    HostRecord,
    joined,
    read_hosts,
    write_table,
)
from phantora_ns.kernels.database.schema import DatabaseError
from phantora_ns.model.gpu import HostCosts
from tests.kernels.recorded import record

KEYS = st.integers(1, 2**63 - 1)


def site(key, count=1, mean=10.0, depth=1, text="launch aten::mm 1"):
    return [key, depth, text, count, mean, mean]


def find(table, key):
    """The reader's side, as libintercept/time/host_model.c has it."""
    magic, version, capacity, count, interruption, unknown = struct.unpack_from("<6Q", table)
    assert (
        (magic, version) == (0x50484E53484F5354, 4)
        and capacity & (capacity - 1) == 0
        and len(table) == 64 + 40 * capacity
    )
    at = key & (capacity - 1)
    while True:
        there, mean_ns = struct.unpack_from("<2Q", table, 64 + 40 * at)
        if there == key:
            return mean_ns
        if there == 0:
            return None
        at = (at + 1) & (capacity - 1)


@given(st.dictionaries(KEYS, st.floats(0, 1e9), max_size=300), KEYS)
def test_every_site_is_found_and_no_other(tmp_path_factory, sites, other):
    path = tmp_path_factory.mktemp("table") / "host.tbl"
    write_table(path, HostRecord(sites=sites, interruption_ns=12.4), 4000)
    table = path.read_bytes()
    assert struct.unpack_from("<2Q", table, 32) == (12, 4000)
    assert {key: find(table, key) for key in sites} == {key: round(ns) for key, ns in sites.items()}
    assert other in sites or find(table, other) is None


def test_equal_records_make_equal_files(tmp_path):
    # all in one place: the order of insertion would show
    sites = {key * 64: 1.0 * key for key in range(1, 200)}
    write_table(tmp_path / "a.tbl", HostRecord(sites=sites), 1)
    write_table(tmp_path / "b.tbl", HostRecord(sites=dict(reversed(sites.items()))), 1)
    assert (tmp_path / "a.tbl").read_bytes() == (tmp_path / "b.tbl").read_bytes()


def test_the_first_database_goes_before_and_sets_the_speed(tmp_path):
    ours = record(
        tmp_path / "a.sqlite",
        host={
            "score": 1000.0,
            "calls": [["launch", 2, 7.0, 7.0]],
            "sites": [site(5, 2, mean=10.0)],
        },
    )
    theirs = record(
        tmp_path / "b.sqlite",
        host={
            "score": 2000.0,
            "calls": [["launch", 1, 1.0, 1.0], ["gemm", 1, 8.0, 8.0]],
            "latency": [9, 5.0, 4.0],
            "gap": [9, 4.0, 3.0],
            "sites": [
                site(5, 2, mean=99.0),
                site(6, 2, mean=40.0),
                site(7, 1, mean=1e9),
                site(INTERRUPTION_KEY, 2, mean=2.0),
            ],
        },
    )
    with Database.open(ours) as first, Database.open(theirs) as second:
        found = read_hosts([first, second])
        # their machine takes twice as long
        assert found.sites == {5: 10.0, 6: 20.0} and found.interruption_ns == 1.0
        assert found.score == 1000.0
        assert found.gap_ns == 3.0, "the GPU's side does not depend on the host"
        assert read_hosts([first, second], sites=False).sites == {}
    costs = found.costs(
        HostCosts(MappingProxyType({"launch": 1, "gemm": 1, "wait": 3}), 100, 200, 300, 9)
    )
    assert costs == HostCosts({"launch": 1, "gemm": 1, "wait": 3}, 100, 3, 300, 9), (
        "calls take longer in a leader, which works around each of them"
    )


def test_what_every_run_saw_once_is_not_known(tmp_path):
    """Five recorded runs paid 10 ms for the first aten::eq, each once: a job with 600 of them was
    charged 6 s a step."""
    sites = [site(5, 1, mean=1e7), site(6, 1, mean=1e7)]
    once = [record(tmp_path / f"{uid}.sqlite", uid=uid, host={"sites": sites}) for uid in "abc"]
    more = record(tmp_path / "d.sqlite", uid="d", host={"sites": [site(6, 4, mean=8.0)]})
    merge(tmp_path / "all.sqlite", [*once, more])
    with Database.open(tmp_path / "all.sqlite") as database:
        assert [(found.key, found.count) for found in database.call_sites()] == [(5, 1), (6, 4)]
        assert read_hosts([database]).sites == {6: 8.0}


def test_without_a_record_the_model_s_own_costs_stand():
    host = load_gpu("h200").host
    assert HostRecord().costs(host) == host


SITES = st.tuples(st.integers(1, 4), st.integers(1, 100), st.floats(0, 1e6))


@given(
    st.lists(st.lists(SITES, max_size=6, unique_by=lambda found: found[0]), min_size=1, max_size=5)
)
def test_processes_add_up(processes):
    whole = joined(
        {"sites": [site(key + 1024, count, mean) for key, count, mean in sites]}
        for sites in processes
    )
    found = {key: (count, mean) for key, _, _, count, mean, _ in whole["sites"]}
    for key in range(1, 5):
        samples = [
            (count, mean) for sites in processes for other, count, mean in sites if other == key
        ]
        if not samples:
            assert key + 1024 not in found
            continue
        count, mean = found[key + 1024]
        if all(c == 1 for c, _ in samples):
            assert (count, mean) == (1, min(m for _, m in samples)), (
                "once each is no more than once"
            )
            continue
        samples = [(c, m) for c, m in samples if c > 1]
        assert count == sum(c for c, _ in samples)
        assert mean == pytest.approx(sum(c * m for c, m in samples) / count)


def test_nonsense_is_refused():
    with pytest.raises(DatabaseError, match="host site"):
        joined([{"sites": [[5, 1, 7, 1, 1.0, 1.0]]}])
