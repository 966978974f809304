"""The event graph by hand: small cases whose times can be worked out on paper, bad input, and
memory."""

import pytest

from phantora_ns.config import load_cluster, load_gpu
from phantora_ns.sim.collectives import CollectiveModel, FlowSpec, Plan
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import BadExpression, BadOp, EventGraph, Mismatch, Op
from phantora_ns.sim.topology import Topology

ALL_REDUCE, SEND, RECV = 0, 8, 9


class OneLink:
    """Every transfer crosses link 0 (1 byte/ns) with its bytes; 10 ns before and 5 ns after. Alone:
    nothing shared."""

    def plan(self, kind, gpus, count_bytes, dtype=9, root=0):
        flows = (FlowSpec((0,), count_bytes, None),) if len(gpus) > 1 else ()
        return Plan(flows, 10, 5, "ring", "Simple", 1)

    def plan_message(self, source, destination, size, *, sent, received, gpus, members):
        return Plan((FlowSpec((0,), size, None),), 10, 5, "pairs", "Simple", 1)


@pytest.fixture
def graph():
    """A graph with four clients."""
    made = EventGraph(FlowSimulator({0: 1.0}), OneLink(), {0: 1.0})
    for _ in range(4):
        made.add_client()
    return made


def comm_of(graph, *clients):
    return graph.communicator(clients, clients, [f"rank {client}" for client in clients])


def reduce(graph, comm, client, number, head, size=100):
    return graph.launch(
        comm, client, number, graph.expression(client, head), [Op(ALL_REDUCE, size, 7, 0, -1)]
    )[0]


def reduce_all(graph, comm, number, head, size=100):
    """All members enter it; returns its end, one vertex of all."""
    return [reduce(graph, comm, client, number, head, size) for client in comm.clients][0]


def test_a_collective_starts_with_its_last_member_and_ends_on_all(graph):
    comm = comm_of(graph, 0, 1)
    first = reduce(graph, comm, 0, 1, [0, 50, 0])
    graph.run()
    assert (first.time_ns, first.matched) == (None, False)
    assert reduce(graph, comm, 1, 1, [0, 70, 20]) is first
    graph.run()
    assert (first.start_ns, first.time_ns, first.settled_ns) == (
        90,
        90 + 10 + 100 + 5,
        90 + 10 + 100 + 1,
    )
    assert dict(graph.vertices(0))[1] is dict(graph.vertices(1))[1] is first
    for _ in range(2):  # before and after the nodes have become history
        assert [graph.totals(client)[:2] for client in (0, 1)] == [(155, 40), (115, 0)]
        graph.commit(1000)
    graph.run()
    graph.check()


def test_a_late_flow_moves_what_hangs_on_those_it_meets_and_nothing_before(graph):
    """0-1 reduce from 0, then a host anchor and a second reduction; 2-3 reduce from 40, told
    last."""
    front, other = comm_of(graph, 0, 1), comm_of(graph, 2, 3)
    one = reduce_all(graph, front, 1, [0, 0, 0])
    two = reduce_all(graph, front, 2, [1, 30, 0])
    anchor = graph.define(0, 3, graph.expression(0, [2, 7, 0, 0, 50, 0]))
    early = graph.define(1, 3, graph.expression(1, [0, 20, 0]))
    graph.run()
    assert (one.time_ns, two.start_ns, two.time_ns, anchor.time_ns) == (115, 145, 260, 267)
    third = reduce_all(graph, other, 1, [0, 30, 0], 40)
    graph.run()
    # 40: the two share the link until the third's 40 bytes are through (80 ns), then the first has
    # 30 bytes left
    assert (third.time_ns, one.time_ns) == (125, 155)
    assert (two.start_ns, two.time_ns, anchor.time_ns, early.time_ns) == (185, 300, 307, 20)
    assert graph.retimed == 1 and graph.revised == 0
    graph.check()


def test_a_told_time_that_moves_is_counted(graph):
    front, other = comm_of(graph, 0, 1), comm_of(graph, 2, 3)
    end = reduce_all(graph, front, 1, [0, 0, 0])
    graph.run()
    end.reported = True
    for client in (2, 3):
        reduce(graph, other, client, 1, [0, 0, 0])
    graph.run()
    assert end.time_ns == 215 and graph.revised == 1


def test_what_the_dead_have_queued_takes_place_for_nobody(graph):
    """0-1 have queued five reductions and ended in the first one; 2-3 reduce as if alone."""
    front, other = comm_of(graph, 0, 1), comm_of(graph, 2, 3)
    for number in range(1, 6):
        end = reduce_all(graph, front, number, [number - 1, 0, 0])
    lonely = reduce(graph, front, 0, 6, [5, 0, 0])  # 1 never reached it
    for number in (5, 6):  # and a stream of 0 waits for both
        wait = graph.expression(0, [number - 1, 0, 0]), graph.expression(0, [number, 0, 0])
        graph.stall(0, 0, *wait)
    graph.mark(0, graph.expression(0, [6, 0, 0]), 0, 0, ())
    graph.run()
    assert graph.close({0: 80, 1: 90}, [2, 3]) == {0, 1}
    assert graph.size() == 0
    third = reduce_all(graph, other, 1, [0, 120, 0])
    graph.run()
    assert (end.time_ns, third.time_ns) == (575, 120 + 10 + 100 + 5)
    assert (graph.retimed, lonely.time_ns) == (0, None)
    assert [graph.totals(client).latest_ns for client in (0, 1)] == [575, 575]
    graph.commit(1000)
    account = graph._timelines[0].account  # nothing of 0 stays in memory
    assert not account.launched and not account._open
    graph.run()
    graph.check()


def test_who_comes_after_all_have_ended_begins_at_0(graph):
    """2-3 reduce as if alone, and as early, although 0-1 have taken 5,000 ns before them."""
    front, other = comm_of(graph, 0, 1), comm_of(graph, 2, 3)
    end = reduce_all(graph, front, 1, [0, 5000, 0])
    graph.run()
    graph.begin_anew(6000)
    for number in (1, 2):
        own = reduce_all(graph, other, number, [number - 1, 0, 0])
        graph.run()
        assert own.time_ns == number * (10 + 100 + 5)
        graph.commit(number * 20)
    graph.check()
    assert (end.time_ns, graph.late, graph.retimed) == (5115, 0, 0)


def test_what_never_ended_is_dropped_when_all_have_ended(graph):
    """0 reduces and 1 never comes; 0 waits for it, and ends a step after it."""
    front = comm_of(graph, 0, 1)
    reduce(graph, front, 0, 1, [0, 10, 0])
    graph.define(0, 2, graph.expression(0, [1, 0, [5, 5]]))
    graph.stall(0, 0, graph.expression(0, [0, 0, 0]), graph.expression(0, [2, 0, 0]))
    graph.mark(0, graph.expression(0, [2, 0, 0]), 0, 0, ())
    graph.run()
    graph.begin_anew(100)
    timeline = graph._timelines[0]
    kept = timeline.account.launched, timeline.account._open, timeline.overlap.stretchable
    assert graph.size() == 0 and not any(kept)
    graph.check()


def test_what_is_under_way_when_all_have_ended_shares_links_with_who_comes(graph):
    """The flow of 0-1 has 50 ns left when that of 2-3 begins, and both get half of the link."""
    front, other = comm_of(graph, 0, 1), comm_of(graph, 2, 3)
    end = reduce_all(graph, front, 1, [0, 5950, 0])
    graph.run()
    graph.begin_anew(6000)
    late = reduce_all(graph, other, 1, [0, 0, 0])
    graph.run()
    assert (end.time_ns, late.time_ns, graph.late) == (6115, 165, 0)


def test_the_dead_that_others_wait_for_are_not_closed(graph):
    front, back = comm_of(graph, 0, 1), comm_of(graph, 2, 3)
    end = reduce_all(graph, front, 1, [0, 50, 0])
    for client in (2, 3):
        reduce(graph, back, client, 1, [0, 100, 0])
    graph.run()
    assert graph.close({0: 20, 2: 30, 3: 30}, [1]) == {2, 3}
    graph.run()
    assert (end.time_ns, graph.size()) == (165, 2)  # alone: the other never began
    graph.check()


def test_communication_without_shared_links_is_final_at_once(graph):
    alone = comm_of(graph, 0)
    end = reduce(graph, alone, 0, 1, [0, 3, 0])
    after = graph.define(0, 2, graph.expression(0, [1, 4, 0]))
    graph.run()
    assert (end.time_ns, end.settled_ns, after.time_ns, after.settled_ns) == (18, 0, 22, 0)


def test_zero_bytes_still_take_the_latency_and_never_no_time(graph):
    class Instant(OneLink):
        def plan(self, kind, gpus, count_bytes, dtype=9, root=0):
            return Plan((FlowSpec((0,), 0, None),), 0, 0, "ring", "Simple", 1)

    comm = comm_of(graph, 0, 1)
    assert reduce_all(graph, comm, 1, [0, 0, 0], 0) is not None
    graph.run()
    assert dict(graph.vertices(0))[1].time_ns == 15
    fast = EventGraph(FlowSimulator({0: 1.0}), Instant(), {0: 1.0})
    fast.add_client()
    reduce(fast, comm_of(fast, 0), 0, 1, [0, 7, 0])
    fast.run()
    assert dict(fast.vertices(0))[1].time_ns == 8


def test_sends_and_receives_match_by_order_in_each_direction(graph):
    comm = comm_of(graph, 0, 1)

    def op(kind, size, peer):
        return Op(kind, size, 7, -1, peer)

    graph.launch(comm, 0, 1, graph.expression(0, [0, 0, 0]), [op(SEND, 10, 1), op(RECV, 20, 1)])
    graph.launch(comm, 1, 1, graph.expression(1, [0, 0, 0]), [op(RECV, 10, 0)])
    graph.run()
    ends = dict(graph.vertices(0))[1], dict(graph.vertices(1))[1]
    # rank 1 has its message; rank 0 still waits for one
    assert (ends[0].time_ns, ends[1].time_ns) == (
        None,
        25,
    )
    graph.launch(comm, 1, 2, graph.expression(1, [1, 100, 0]), [op(SEND, 20, 0)])
    graph.run()
    assert ends[0].time_ns == 125 + 10 + 20 + 5
    graph.check()


def test_a_message_to_oneself(graph):
    comm = comm_of(graph, 0, 1)
    both = graph.launch(
        comm, 1, 1, graph.expression(1, [0, 2, 0]), [Op(SEND, 8, 7, -1, 1), Op(RECV, 8, 7, -1, 1)]
    )
    graph.run()
    assert both[0] is both[1] and both[0].time_ns == 2 + 10 + 8 + 5


@pytest.mark.parametrize("cluster,nodes", [("h200-1x8", 1), ("h200-rail", 2)])
@pytest.mark.parametrize("size", [1 << 10, 3 << 20])
def test_grouped_messages_to_all_take_as_long_as_an_all_to_all(cluster, nodes, size):
    """Each rank's launch is known only when it comes, yet together they are what NCCL runs for
    ncclAlltoAll."""
    found = load_cluster(cluster, nodes=nodes, gpus_per_node=8)
    topology = Topology.build(found)
    ranks = range(8 * nodes)
    ends = []
    for grouped in (False, True):
        capacities = topology.capacities
        graph = EventGraph(
            FlowSimulator(capacities), CollectiveModel(topology, load_gpu(found.gpu)), capacities
        )
        for _ in ranks:
            graph.add_client()
        comm = comm_of(graph, *ranks)
        for rank in ranks:
            messages = [Op(kind, size, 1, -1, peer) for peer in ranks for kind in (SEND, RECV)]
            ops = messages if grouped else [Op(5, size, 1, -1, -1)]
            graph.launch(comm, rank, 1, graph.expression(rank, [0, 100, 0]), ops)
        graph.run()
        graph.check()
        ends.append([dict(graph.vertices(rank))[1].time_ns for rank in ranks])
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "flat",
    [None, [1], [0, -1, 0], [0, 0, 1 << 56], [0, 0.5, 0], ["0", 0, 0], [7, 0, 0], [True, 0, 0]],
)
def test_heads_that_are_none(graph, flat):
    with pytest.raises(BadExpression):
        graph.expression(0, flat)


@pytest.mark.parametrize("number", [0, -1, 5, None, 1.0, 6 + (1 << 20)])
def test_node_numbers_that_cannot_be(graph, number):
    graph.define(0, 5, graph.expression(0, []))
    with pytest.raises(BadExpression):
        graph.define(0, number, graph.expression(0, []))


@pytest.mark.parametrize(
    "op",
    [
        Op(10, 4, 7, 0, 0),
        Op(0, -4, 7, 0, 0),
        Op(0, 4, 12, 0, 0),
        Op(3, 4, 7, 0, 2),
        Op(8, 4, 7, 0, -1),
    ],
)
def test_operations_that_cannot_be_leave_nothing_behind(graph, op):
    comm = comm_of(graph, 0, 1)
    with pytest.raises(BadOp):
        graph.launch(comm, 0, 1, graph.expression(0, [0, 0, 0]), [Op(ALL_REDUCE, 4, 7, 0, -1), op])
    assert graph.size() == 0
    assert [reduce(graph, comm, client, 1, [0, 0, 0]).matched for client in (0, 1)] == [False, True]


def test_a_mismatch_is_told_in_rank_order(graph):
    comm = comm_of(graph, 2, 3)
    reduce(graph, comm, 3, 1, [0, 0, 0], 4)
    with pytest.raises(
        Mismatch,
        match=r"rank 2 calls all_reduce\(8 bytes, fp32, sum\), rank 3 calls all_reduce\(4 bytes",
    ):
        reduce(graph, comm, 2, 1, [0, 0, 0], 8)


def test_history_behind_the_commit_horizon_goes_and_its_times_stay(graph):
    """A thousand steps: live objects stay few, old nodes can be named until they are forgotten."""
    comm = comm_of(graph, 0, 1)
    before, sizes, objects = 0, set(), set()
    for step in range(1, 1001):
        number = 10 * step
        for client in (0, 1):
            graph.launch(
                comm,
                client,
                number,
                graph.expression(client, [before, 500, 500]),
                [Op(ALL_REDUCE, 50, 7, 0, -1)] * 2,
            )
            graph.define(
                client, number + 1, graph.expression(client, [number, 40, 0, before, 1, 0])
            )
            graph.stall(
                client,
                0,
                graph.expression(client, [before, 1000, 0]),
                graph.expression(client, [number, 0, 0]),
            )
        graph.run()
        end = dict(graph.vertices(0))[number + 1].time_ns
        before = number + 1
        graph.commit(end)
        sizes.add(graph.size())
        objects.add(graph._flows._flows.statistics.retained)
    assert sizes == {0} and max(objects) < 600
    step_ns = 1000 + 10 + 100 + 5 + 40  # two reductions of 50 bytes share the link
    assert end == 1000 * step_ns
    assert graph.expression(0, [11, 3, 0]).reach() == (step_ns + 3, 0)
    assert graph.totals(0) == (1000 * 115, 0, {0: 1000 * 115}, end)
    graph.forget(0, 9000)
    with pytest.raises(BadExpression):
        graph.expression(0, [11, 3, 0])
    assert graph.expression(0, [before, 0, 0]).reach() == (end, 0)
    assert graph.expression(0, [0, 9, 0]).reach() == (9, 0)  # the origin is never forgotten


def test_what_comes_before_the_commit_horizon_starts_on_it(graph):
    """A rank that nobody had heard of: its flows cannot change history."""
    front, other = comm_of(graph, 0, 1), comm_of(graph, 2, 3)
    end = reduce_all(graph, front, 1, [0, 0, 0])
    graph.run()
    graph.commit(200)
    late = reduce_all(graph, other, 1, [0, 0, 0])
    graph.run()
    assert (end.time_ns, late.start_ns, late.time_ns, graph.late) == (115, 0, 305, 1)
