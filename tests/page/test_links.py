"""What crosses links, against nccl-tests' definition of bus bytes and against conservation."""

import pytest

from phantora_ns.config import load_cluster
from phantora_ns.page import links
from phantora_ns.page.links import BINS, LinkUse

MIB = 2**20


def launch(rank, operation, begin, end, members, send, receive, **more):
    return {
        "operation": operation,
        "operations": 1,
        "communicator": 5,
        "member": rank,
        "members": members,
        "send_bytes": send,
        "receive_bytes": receive,
        "group": "",
        "algorithm": "ring",
        "protocol": "Simple",
        "start_ns": begin,
        "end_ns": end,
    } | more


def used(cluster, launched, gpus=None):
    use = LinkUse(cluster, None, 0, 10_000_000)
    use.add_all(launched, gpus or {rank: rank for rank in launched})
    return use, use.result()


@pytest.mark.parametrize(
    "operation, send, receive, factor",
    [
        ("all_reduce", 512 * MIB, 512 * MIB, 2 * 3 / 4),
        ("all_gather", 128 * MIB, 512 * MIB, 3 / 4),
        ("reduce_scatter", 512 * MIB, 128 * MIB, 3 / 4),
    ],
)
def test_a_collective_inside_a_server_moves_its_bus_bytes(operation, send, receive, factor):
    """nccl-tests, doc/PERFORMANCE.md: what each GPU's link carries."""
    cluster = load_cluster("a100-1x8", 1, 4)
    launched = {r: [launch(r, operation, 0, 5_000_000, 4, send, receive)] for r in range(4)}
    use, found = used(cluster, launched)
    assert use.left_out == 0
    assert found["links_in_all"] == 8  # up and down of four GPUs
    for row in found["links"]:
        assert row["bytes"] == pytest.approx(512 * MIB * factor, rel=1e-3)
        capacity = use.topology.capacities[use.topology.link_id(*row["link"].split(" -> "))]
        assert row["utilisation"] == pytest.approx(row["bytes"] / capacity / 10_000_000, abs=1e-6)


def test_what_enters_a_switch_leaves_it(monkeypatch):
    monkeypatch.setattr(links, "MOST_LINKS", 1000)
    cluster = load_cluster("h200-rail", 2, 8)
    size = 64 * MIB
    launched = {r: [launch(r, "all_gather", 0, 1_000_000, 16, size, 16 * size)] for r in range(16)}
    _, found = used(cluster, launched)
    into, out = {}, {}
    assert found["links_in_all"] == len(found["links"])
    for row in found["links"]:
        a, b = row["link"].split(" -> ")
        into[b] = into.get(b, 0) + row["bytes"]
        out[a] = out.get(a, 0) + row["bytes"]
    rails = [name for name in into if name.startswith("rail")]
    assert rails and all(into[rail] == out[rail] for rail in rails)


def test_time_is_spread_and_adds_up():
    cluster = load_cluster("a100-1x8", 1, 4)
    launched = {
        r: [launch(r, "all_reduce", 3_100_000, 6_200_000, 4, 8 * MIB, 8 * MIB)] for r in range(4)
    }
    _, found = used(cluster, launched)
    for one in found["classes"]:
        bins = one["over_time"]
        assert len(bins) == BINS
        assert sum(bins) / BINS == pytest.approx(one["most"], rel=0.02)
        assert not any(bins[: BINS * 30 // 100]) and not any(bins[BINS * 63 // 100 :])


def test_a_message_needs_its_sender_and_receiver():
    cluster = load_cluster("a100-1x8", 1, 4)
    send = launch(0, "send", 0, 1000, 2, MIB, 0)
    receive = launch(1, "recv", 0, 1000, 2, 0, MIB)
    use, found = used(cluster, {0: [send], 3: [receive]})
    assert use.left_out == 0
    assert {row["link"] for row in found["links"]} == {
        "node-0/gpu-0 -> node-0/nvswitch",
        "node-0/nvswitch -> node-0/gpu-3",
    }
    assert {row["bytes"] for row in found["links"]} == {MIB}
    use, found = used(cluster, {0: [send]})
    assert (use.left_out, found["links"]) == (1, [])


def test_a_collective_of_which_a_member_is_not_traced_is_left_out():
    cluster = load_cluster("a100-1x8", 1, 4)
    launched = {r: [launch(r, "all_reduce", 0, 1000, 4, MIB, MIB)] for r in range(3)}
    use, found = used(cluster, launched)
    assert (use.left_out, found["links"]) == (1, [])
