"""What the hub answers and when: rendezvous, splits, queries in simulated time, conservative
release, errors of the job."""

import errno

import pytest
import zmq
from client import (
    ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BF16, BROADCAST, FP32, GATHER, RECV, REDUCE_SCATTER,
    SCATTER, SEND, STEP, SUM, Client, HubError, form,
)  # fmt: skip

from phantora_ns.hub.registry import SharedStats, StatsError
from phantora_ns.protocol import KERNEL_TABLE_SLOT, VERSION, KernelTableSlot, Precision


def ranks(hub, count, **options):
    return [Client(hub.run_dir, rank, rank // 4, **options) for rank in range(count)]


def answered(client, request: int) -> bool:
    """Whether the hub has answered `request`, judged after a round trip that it handles later."""
    client.lookup(request, 4, ["nop", []])
    return request in client.replies


def test_a_version_that_the_hub_does_not_speak_is_refused(hub):
    client = Client(hub.run_dir, version=VERSION + 1)
    assert client.welcome[:2] == [1, -1] and "version" in client.welcome[2]["error"]
    assert client.welcome[2]["error"].endswith("; run make build")


def test_statistics_that_cannot_be_read_are_refused_with_a_cure(tmp_path, monkeypatch):
    path = tmp_path / "0"
    path.write_bytes(b"\0" * 4096)
    with pytest.raises(StatsError, match="no rank statistics of version .*; run make build$"):
        SharedStats(path)

    def fails(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr("phantora_ns.hub.registry.os.open", fails)
    with pytest.raises(StatsError, match="0: Too many open files; raise ulimit -n$"):
        SharedStats(path)


def test_a_rendezvous_is_one_nanosecond_after_its_last_member(hub):
    clients = ranks(hub, 4)
    for client, ns in zip(clients, (10, 4_000, 7, 0)):
        client.advance(ns)
    assert form(clients) == 0
    assert [client.clock for client in clients] == [4_001] * 4


def test_splits_order_members_by_key_then_rank(hub):
    clients = ranks(hub, 6)
    comm = form(clients, devices=[0, 1, 2, 3, 0, 1])
    wishes = [(0, 9), (1, 5), (0, 1), (1, 5), (0, 1), (-1, 0)]  # (color, key)
    opened = [c.start_split(comm, color, key) for c, (color, key) in zip(clients, wishes)]
    found = [c.finish_split(*o) for c, o in zip(clients, opened)]
    evens, odds = found[0][0], found[1][0]
    assert found == [
        (evens, 2, 3),
        (odds, 0, 2),
        (evens, 0, 3),
        (odds, 1, 2),
        (evens, 1, 3),
        (-1, -1, 0),
    ]
    assert len({comm, evens, odds}) == 3
    # the parts work: a reduction over each
    nodes = [
        c.ops(found[i][0], [ALL_REDUCE, 4, 2, SUM, -1, (i + 1).to_bytes(4, "little"), 1])
        for i, c in enumerate(clients[:5])
    ]
    assert [int.from_bytes(c.fetch(n), "little") for c, n in zip(clients, nodes)] == [9, 6, 9, 6, 9]


def test_two_ranks_on_one_gpu_are_the_jobs_error(hub):
    clients = ranks(hub, 2)
    opened = [c.start_init(b"x", 2, i, device=3) for i, c in enumerate(clients)]
    for client, (request, _) in zip(clients, opened):
        with pytest.raises(
            HubError, match="share a GPU.*rank 0 on node 0 device 3.*rank 1 on node 0 device 3"
        ):
            client.wait(request)


@pytest.mark.parametrize("formed", [True, False])
def test_an_identifier_of_ranks_that_are_no_more_is_an_error_of_the_rank_that_brings_it(
    hub, formed
):
    """The store of torchrun's agent keeps it when ranks start again."""
    first = ranks(hub, 2)
    if formed:
        form(first, b"old")
    else:  # its partner never came
        first[0].start_init(b"old", 2, 0)
        first[0].query([0, 0, 0])
    for client in first:
        client.bye()
    late, *others = ranks(hub, 3)
    with pytest.raises(HubError, match="brings an old NCCL identifier"):
        late.init(b"old", 2, 0)
    form(others, b"new")


def test_a_mismatch_names_ranks_operation_and_sizes_and_fails_the_members(hub):
    a, b, other = ranks(hub, 3)
    comm = form([a, b])
    alone = form([other], b"alone")
    a.ops(comm, [ALL_REDUCE, 4096, BF16, SUM, -1, None, 0])
    request, _ = a.start_sync()
    b.ops(comm, [ALL_GATHER, 4096, BF16, -1, -1, None, 0])
    said = r"rank 0 calls all_reduce\(4096 bytes, bf16, sum\), rank 1 calls all_gather\(4096 bytes, bf16\)"
    with pytest.raises(HubError, match=said) as first:
        a.wait(request)
    with pytest.raises(HubError, match=said) as second:
        b.sync()
    assert first.value.said and second.value.said  # so ranks do not print it again
    other.all_reduce(alone, 64)
    assert other.sync() > 0  # others go on
    result = hub.stop()
    assert len(result["errors"]) == 1 and hub.stderr.count("all_gather") == 1


def test_messages_of_unequal_size_are_a_mismatch(hub):
    a, b = ranks(hub, 2)
    comm = form([a, b])
    a.ops(comm, [SEND, 64, FP32, -1, 1, None, 0])
    b.ops(comm, [RECV, 128, FP32, -1, 0, None, 0])
    with pytest.raises(
        HubError, match=r"rank 0 calls send\(64 bytes, fp32\), rank 1 calls recv\(128 bytes"
    ):
        b.sync()


def test_a_running_rank_holds_back_what_it_can_still_change(hub):
    """Two pairs share the rail between their servers. The first pair's answer waits until the
    second can no longer meet it."""
    clients = [
        Client(hub.run_dir, rank, node, timeout_ms=20_000)
        for rank, node in ((0, 0), (1, 1), (2, 0), (3, 1))
    ]
    first = form([clients[0], clients[1]], b"first", [0, 0])
    second = form([clients[2], clients[3]], b"second", [0, 0])
    for client in clients[2:]:
        client.look_busy()
    size = 8 << 20
    for client in clients[:2]:
        client.all_reduce(first, size)
    pending = [client.start_sync() for client in clients[:2]]
    for client, (request, _) in zip(clients, pending):  # the hub has both before it has the others
        assert not answered(client, request)
    clients[2].advance(50_000)  # in the middle of the first pair's
    for client in clients[2:]:
        client.all_reduce(second, size)
    later = [client.start_sync() for client in clients[2:]]
    together = [client.finish_sync(*sync) for client, sync in zip(clients, pending + later)]
    assert together[0] == together[1] < together[2] == together[3]
    result = hub.stop()
    assert result["rollbacks"] > 0 and result["revised"] == 0
    alone = together[2] - 50_000
    assert together[0] - 1 > alone * 0.9  # the first was slowed by the second


def contended_pairs(hub, advance_first):
    """Two pairs share a rail; the second acts 50 us later. Returns what each of the four was told,
    and hub.json."""
    clients = [
        Client(hub.run_dir, rank, node, timeout_ms=20_000)
        for rank, node in ((0, 0), (1, 1), (2, 0), (3, 1))
    ]
    first, second = (
        form([clients[0], clients[1]], b"first", [0, 0]),
        form([clients[2], clients[3]], b"second", [0, 0]),
    )
    told = {}
    for pair, comm, start_ns in ((clients[:2], first, 0), (clients[2:], second, 50_000)):
        for client in pair:
            client.look_busy()
            client.advance(start_ns)
            client.all_reduce(comm, 8 << 20)
        waiting = [(client, client.start_sync()) for client in pair]
        if advance_first:  # the second pair acts only once the first has its answers
            told |= {client.rank: client.finish_sync(*sync) for client, sync in waiting}
        else:
            told |= {client.rank: (client, sync) for client, sync in waiting}
    if not advance_first:
        told = {rank: client.finish_sync(*sync) for rank, (client, sync) in told.items()}
    return told, hub.stop()


def test_optimistic_answers_come_at_once_and_the_timeline_is_the_same(hub_of):
    careful, result = contended_pairs(hub_of(), advance_first=False)
    early, hasty = contended_pairs(hub_of(sync="optimistic"), advance_first=True)
    assert early[0] < careful[0]  # told before the second pair was known, and revised since
    assert result["revised"] == 0 and hasty["revised"] == 2
    assert early[2] == careful[2] and hasty["simulated_ns"] == result["simulated_ns"]


def test_contended_times_do_not_depend_on_who_comes_first(hub_of):
    found = []
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        hub = hub_of()
        clients = [Client(hub.run_dir, rank, rank % 2) for rank in range(4)]
        comms = {
            0: form([clients[0], clients[1]], b"a", [0, 0]),
            2: form([clients[2], clients[3]], b"b", [0, 0]),
        }
        for client in clients[2:]:
            client.advance(40_000)
        for client in clients:
            client.look_busy()
        syncs = {}
        for i in order:
            for _ in range(3):
                clients[i].all_reduce(comms[i // 2 * 2], 4 << 20)
            syncs[i] = clients[i].start_sync()
            # the hub has handled all of it before the next rank says anything
            clients[i].lookup(1, 4, ["nop", []])
        found.append([clients[i].finish_sync(*syncs[i]) for i in range(4)])
        assert hub.stop()["revised"] == 0
    assert found[0] == found[1] == found[2]


def test_queries_are_decided_in_simulated_time(hub):
    a, b = ranks(hub, 2)
    comm = form([a, b])
    node = a.all_reduce(comm, 1 << 20)
    request = a.start_query([node, 0, 0])
    b.all_reduce(comm, 1 << 20)
    pending = b.start_sync()
    assert a.wait(request)[2] == 0  # issued a moment ago in simulated time, whatever the real time
    a.advance(10**9)
    assert a.query([node, 0, 0]) == 1
    end = a.times([node, 0, 0])[0]
    assert a.query([node, 0, 0], [0, end - 1, 0]) == 0 and a.query([node, 0, 0], [0, end, 0]) == 1
    assert b.finish_sync(*pending) == end


def test_a_query_of_what_nobody_else_has_started_does_not_wait_for_ever(hub):
    """The other member only comes after the caller's clock has gone on: not ready is the only
    answer."""
    a, b = ranks(hub, 2)
    comm = form([a, b])
    node = a.all_reduce(comm, 1 << 20)
    b.advance(1_000_000)
    assert a.query([node, 0, 0]) == 0
    a.advance(10)
    b.all_reduce(comm, 1 << 20)
    assert a.query([node, 0, 0]) == 0


def test_a_watcher_is_told_what_is_known_now(hub):
    a, b = ranks(hub, 2)
    comm = form([a, b])
    node = a.all_reduce(comm, 1 << 20)
    assert a.query([node, 0, 0], []) == 0
    b.all_reduce(comm, 1 << 20)
    b.lookup(1, 4, ["nop", []])
    told = a.query([node, 0, 0], [])  # its end is known, though nobody has reached it
    # each synchronises its stream, which ends with the all-reduce
    both = (
        a.start_sync(),
        b.start_sync(),
    )
    assert [a.finish_sync(*both[0]), b.finish_sync(*both[1])] == [told - 1] * 2


def test_values_of_every_kind(hub):
    """Bytes through each operation, three ranks; rank r's data is r+1 repeated."""
    clients = ranks(hub, 3)
    comm = form(clients)

    def run(kind, payloads, count, peer=-1, wanted=(0, 1, 2)):
        nodes = [
            c.ops(comm, [kind, count, 1, -1, peer, p, int(i in wanted)])
            for i, (c, p) in enumerate(zip(clients, payloads))
        ]
        return [c.fetch(n) if i in wanted else None for i, (c, n) in enumerate(zip(clients, nodes))]

    own = [bytes([r + 1]) * 2 for r in range(3)]
    whole = [bytes([10 * r + i for i in range(3)]) for r in range(3)]
    assert run(ALL_GATHER, own, 2) == [b"\1\1\2\2\3\3"] * 3
    assert run(ALL_GATHER, [own[0], None, own[2]], 2) == [b"\1\1\0\0\3\3"] * 3
    assert run(ALL_GATHER, [None] * 3, 2) == [b""] * 3
    assert run(BROADCAST, [None, own[1], None], 2, 1) == [own[1]] * 3
    assert run(ALL_TO_ALL, whole, 1) == [bytes([i, 10 + i, 20 + i]) for i in range(3)]
    assert run(GATHER, own, 2, 2) == [b"", b"", b"\1\1\2\2\3\3"]
    assert run(SCATTER, [whole[0], None, None], 1, 0) == [b"\0", b"\1", b"\2"]
    assert run(REDUCE_SCATTER, whole, 1, wanted=()) == [None] * 3
    # a ring of sends and receives in one launch
    nodes = [
        c.ops(
            comm, [SEND, 2, 1, -1, (i + 1) % 3, own[i], 0], [RECV, 2, 1, -1, (i - 1) % 3, None, 1]
        )
        for i, c in enumerate(clients)
    ]
    assert [c.fetch(n, 1) for c, n in zip(clients, nodes)] == [own[2], own[0], own[1]]


def test_a_fetch_waits_for_the_last_member(hub):
    a, b = ranks(hub, 2)
    comm = form([a, b])
    node = a.ops(comm, [ALL_REDUCE, 1, 1, SUM, -1, b"\1", 1])
    request = a.start_fetch(node)
    b.lookup(1, 4, ["nop", []])
    assert not a.socket.poll(0)
    b.ops(comm, [ALL_REDUCE, 1, 1, SUM, -1, b"\2", 0])
    assert a.wait(request)[2] == b"\3"
    with pytest.raises(HubError, match="no result"):
        a.fetch(node)


def test_stalls_and_communication_are_added_up(hub):
    a, b = ranks(hub, 2)
    comm = form([a, b])
    syncs = []
    for client in (a, b):
        client.compute(1_000)
        node = client.all_reduce(comm, 1 << 20)
        syncs.append(client.start_sync({"stalls": [[0, client.host_head(), [node, 0, 0]]]}))
    for client, sync in zip((a, b), syncs):
        client.finish_sync(*sync)
    result = hub.stop()
    comm_ns = result["clients"][0]["comm_ns"]
    assert comm_ns > 0
    assert [c["exposed_comm_ns"] for c in result["clients"]] == [comm_ns + 1_000] * 2


def test_a_step_ends_where_the_host_is_with_all_that_came_before(hub):
    """The second mark is 500 ns after communication, whose end its client does not know."""
    a, b = ranks(hub, 2)
    comm = form([a, b])
    for client in (a, b):
        client.advance(700)
        client.send(STEP, client.clock, {}, client.host_head(), 10, 20, [])
    early = [client.clock for client in (a, b)]
    for client in (a, b):
        before = client.host_head()
        node = client.all_reduce(comm, 1 << 20)
        extra = {"stalls": [[0, before, [node, 0, 0]]]}
        client.send(STEP, client.clock, extra, [node, 500, 0], 30, 50, [0, 7, *[0] * 8])
    syncs = [client.start_sync() for client in (a, b)]
    ends = [client.finish_sync(*sync) for client, sync in zip((a, b), syncs)]
    for entry, first, end in zip(hub.stop()["clients"], early, ends):
        exposed_ns = entry["exposed_comm_ns"]
        assert exposed_ns == end - first > 0
        assert entry["steps"] == [
            [first, 10, 20, 0, []],
            [end + 500, 30, 50, exposed_ns, [0, 7, *[0] * 8]],
        ]


def test_lookups_and_notes(hub):
    client = Client(hub.run_dir)
    product = [0, 0, 0, 2048, 2048, 16384, 1, 14, 14, 14, 14, 68, 1, 2048, 16384, 2048]
    answer = client.lookup(77, 1, product)
    assert answer[:4] == [10, 1, 1016, 2]
    drag_permille = answer[4]  # by the tiles of the product, from the GPU model
    assert drag_permille > 0
    context, parameters = ["aten::add", 1, 2, [[1]]], b"\1"
    # those two are not fields
    assert client.lookup(78, 0, ["k", *[1] * 10, b"", context, parameters])[2] == 1112
    client.note("unsupported", "cudaFoo")
    client.note("unsupported", "cudaFoo")
    client.note("guess", "something")
    client.lookup(77, 1, product)
    result = hub.stop()
    assert result["unsupported_calls"] == {"cudaFoo": 2} and result["guesses"] == {"something": 1}
    table = (hub.run_dir / "kernels.tbl").read_bytes()
    assert int.from_bytes(table[24:32], "little") == 2
    slot = KernelTableSlot.unpack(table, 64 + 77 * KERNEL_TABLE_SLOT.size)
    assert slot[:4] == (77, 1016, 2, drag_permille)
    assert (slot.bound_by >> 16, slot.flop) == (Precision.BF16, 2 * 2048 * 2048 * 16384)
    assert answer[7] == slot.flop and result["uncounted"] == ["k"]


def test_a_request_that_makes_no_sense_is_answered_with_an_error(hub):
    client = Client(hub.run_dir)
    client.send(2, 5, 0, {}, 1, [99, 0, 0])  # SYNC on a vertex that was never defined
    with pytest.raises(HubError, match="vertex 99 is not known") as refused:
        client.wait(5)
    assert not refused.value.said
    client.send(2, 6, "now", {}, 1, [0, 0, 0])
    with pytest.raises(HubError):
        client.wait(6)
    assert client.sync() == 0
    assert hub.stop()["bad_messages"] == 2


def test_the_hub_does_not_answer_strangers(hub):
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        socket.connect(f"ipc://{hub.run_dir}/hub.sock")
        socket.send(b"\xc1garbage")
        socket.send_multipart([b"two", b"frames"])
        client = Client(hub.run_dir)
        assert client.sync() == 0
    finally:
        socket.close()
    assert hub.stop()["bad_messages"] == 2
