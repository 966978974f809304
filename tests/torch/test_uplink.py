"""Why it exists: what shares a link must share its bandwidth. Arithmetic predicts every time here
to a quarter of a millisecond.

Two servers, each under a leaf switch of its own with one cable to the spine; in one cluster that
cable carries what both NICs can send, in the other a quarter of it. A ring over R ranks sends (R -
1) / R of the data over each of its edges, an all-reduce twice that, half of it by each NIC. Around
the bytes come NCCL's start (under 20 us) and at most six steps of a ring (under 20 us each between
nodes), launch and events: LATENCY_MS bounds them all.
"""

import pytest

from tests.torch.outcome import JOBS, Outcome

SIZE = 4 << 30
NIC, SHARE = 50e9, 0.97  # 400 Gbit/s; the share of a link that data can use, docs/clusters.md
LATENCY_MS = 0.25
CLUSTER = """
gpu = "h200"
[server]
interconnect = "nvswitch"
[network]
kind = "fat-tree"
nic_bandwidth = "400 Gbit/s"
nodes_per_leaf = 1
spines = 1
oversubscription = {}
"""


@pytest.fixture(scope="module")
def times(phantora, tmp_path_factory):
    """times[oversubscription][operation]: the longest of the ranks, ms."""
    found = {}
    for oversubscription in (1, 4):
        cluster = tmp_path_factory.mktemp("cluster") / "two-tiers.toml"
        cluster.write_text(CLUSTER.format(float(oversubscription)))
        done = phantora(
            "--quiet",
            "--cluster",
            cluster,
            "--host-time",
            "none",
            "torchrun",
            "--nnodes",
            2,
            "--nproc-per-node",
            2,
            JOBS / "uplink.py",
        )
        assert done.returncode == 0, done.stderr
        lines = Outcome(done, 4).lines("TIMES")
        assert sorted(line.pop("rank") for line in lines) == [0, 1, 2, 3]
        found[oversubscription] = {name: max(line[name] for line in lines) for name in lines[0]}
    return found


def milliseconds(size, bandwidth):
    return size / (bandwidth * SHARE) * 1e3


@pytest.mark.parametrize("oversubscription", [1, 4])
@pytest.mark.parametrize(
    "operation, volume", [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75)]
)
def test_rings_take_their_bytes_over_the_uplink(times, oversubscription, operation, volume):
    expected = milliseconds(volume * SIZE, 2 * NIC / oversubscription)
    assert expected < times[oversubscription][operation] < expected + LATENCY_MS


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_the_slow_down_is_the_oversubscription(times, operation):
    slack = LATENCY_MS / times[1][operation]
    assert 4 * (1 - slack) < times[4][operation] / times[1][operation] < 4 * (1 + slack)


def test_pairs_that_share_an_uplink_halve_each_other(times):
    alone, both = times[4]["one pair"], times[4]["two pairs"]
    assert milliseconds(SIZE, NIC / 2) < alone < milliseconds(SIZE, NIC / 2) + LATENCY_MS
    assert 2 * alone - LATENCY_MS < both < 2 * alone + LATENCY_MS
    assert abs(times[1]["two pairs"] - times[1]["one pair"]) < LATENCY_MS  # where nothing is shared


def test_the_two_directions_of_a_cable_are_apart(times):
    assert abs(times[4]["both directions"] - times[4]["one pair"]) < LATENCY_MS


def test_two_communicators_share_an_uplink(times):
    expected = milliseconds(SIZE, NIC / 2)  # two ranks: each sends the whole once
    assert expected < times[4]["one rail"] < expected + LATENCY_MS
    assert 2 * expected < times[4]["two rails"] < 2 * expected + LATENCY_MS
    assert milliseconds(SIZE, NIC) < times[1]["two rails"] < milliseconds(SIZE, NIC) + LATENCY_MS


def test_traffic_inside_a_server_does_not_know_the_uplink(times):
    assert times[1]["inside"] == times[4]["inside"]
