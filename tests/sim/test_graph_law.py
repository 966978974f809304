"""The law of the event graph: the timeline does not depend on the order in which messages come, and
is the one that a simulation in time order, knowing the whole job, gives."""

import gc
import random
from collections import Counter
from dataclasses import dataclass, field

import hypothesis
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.sim._earliest import expression_earliest_ns
from phantora_ns.sim._transfers import LaunchBegin, LaunchEnd
from phantora_ns.sim._vertices import LATEST_NS, Rendezvous
from phantora_ns.sim.collectives import FlowSpec, Plan
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph, Op, TimeExpression, Transfer

CAPACITIES = {link: capacity for link, capacity in enumerate((1.0, 2.5, 4.0, 1.0))}


class SmallModel:
    """Every transfer loads one link per member, so that different communicators meet on links; some
    load none."""

    def plan(self, kind, gpus, count_bytes, dtype=9, root=0):
        flows = (
            tuple(FlowSpec((gpu % 4,), count_bytes, None if gpu % 2 else 1.5) for gpu in gpus)
            if len(gpus) > 1
            else ()
        )
        return Plan(flows, count_bytes % 5, count_bytes % 3, "ring", "Simple", 1)

    def plan_message(self, source, destination, size, *, sent, received, gpus, members):
        flows = (
            ()
            if source == destination
            else (FlowSpec((source % 4, (destination + 1) % 4), size, None),)
        )
        return Plan(
            flows,
            2 + sent[0] + received[0],
            sent[1] % 7 + received[1] % 3 + gpus,
            "pairs",
            "Simple",
            1,
        )


@dataclass
class Job:
    """Communicators (lists of ranks) and, per rank, its calls in order: ("define", node, head),
    ("launch", comm, node, head, ops), ("meet", meeting, size, node, head). Ops are (kind, bytes,
    peer)."""

    comms: list
    programs: list
    nodes: list = field(default_factory=list)


def make_job(rng: random.Random, ranks: int, events: int) -> Job:
    """A job without dead-lock: every event is issued by all of its ranks before the next."""
    comms = [list(range(ranks))]
    for _ in range(rng.randint(0, 3)):
        comms.append(rng.sample(range(ranks), rng.randint(1, ranks)))
    programs = [[] for _ in range(ranks)]
    made = [[0] for _ in range(ranks)]

    def head(rank):
        chosen = rng.sample(made[rank][-6:], min(len(made[rank][-6:]), rng.randint(1, 3)))
        return [x for node in chosen for x in (node, rng.randint(0, 40), rng.randint(0, 40))]

    def node(rank):
        made[rank].append(made[rank][-1] + rng.choice([1, 1, 2]))
        return made[rank][-1]

    def launch(rank, comm, ops):
        start = head(rank)
        programs[rank].append(("launch", comm, node(rank), start, ops))

    for event in range(events):
        comm = rng.randrange(len(comms))
        members = comms[comm]
        size = rng.choice([0, 3, 20, 50, 100])
        what = rng.choice(["collective", "collective", "pair", "ring", "group", "define", "meet"])
        if what == "collective":
            kind = rng.randrange(8)
            for rank in members:
                launch(rank, comm, [(kind, size, 0)])
        elif what == "pair":
            a, b = rng.randrange(len(members)), rng.randrange(len(members))
            if a == b:
                launch(members[a], comm, [(8, size, a), (9, size, a)])
            else:
                launch(members[a], comm, [(8, size, b)])
                launch(members[b], comm, [(9, size, a)])
        elif what == "ring":
            n = len(members)
            for i, rank in enumerate(members):
                launch(
                    rank, comm, [(8, size + i, (i + 1) % n), (9, size + (i - 1) % n, (i - 1) % n)]
                )
        elif what == "group":
            for rank in members:
                launch(rank, comm, [(0, size, -1), (1, size + 1, -1)])
        elif what == "meet":
            for rank in members:
                start = head(rank)
                programs[rank].append(("meet", event, len(members), node(rank), start))
        else:
            rank = rng.choice(members)
            start = head(rank)
            programs[rank].append(("define", node(rank), start))
    return Job(comms, programs)


def replay(
    job: Job, order: random.Random, run_share: float, watch=None
) -> tuple[EventGraph, list[dict]]:
    """Feeds the programs in a random order that respects each rank's own; returns the graph and
    every rank's times.

    `watch(graph, done, objects)` is called after each run; `done` says how many calls each rank has
    made.
    """
    graph = EventGraph(FlowSimulator(CAPACITIES), SmallModel(), CAPACITIES)
    clients = [graph.add_client() for _ in job.programs]
    comms = [
        graph.communicator(members, members, [f"rank {m}" for m in members])
        for members in job.comms
    ]
    meetings = {}
    done = [0] * len(clients)
    objects = [{} for _ in clients]
    while open_ranks := [
        rank for rank, program in enumerate(job.programs) if done[rank] < len(program)
    ]:
        rank = order.choice(open_ranks)
        call = job.programs[rank][done[rank]]
        done[rank] += 1
        head = graph.expression(rank, call[-2] if call[0] == "launch" else call[-1])
        if call[0] == "define":
            number = call[1]
            graph.define(rank, number, head)
        elif call[0] == "meet":
            number = call[3]
            meeting = meetings.setdefault(call[1], None) or graph.rendezvous(call[2])
            meetings[call[1]] = meeting
            graph.join(meeting, rank, number, head)
        else:
            number = call[2]
            graph.launch(
                comms[call[1]],
                rank,
                number,
                head,
                [Op(kind, size, 7, 0, peer) for kind, size, peer in call[4]],
            )
        objects[rank][number] = dict(graph.vertices(rank))[number]
        if order.random() < run_share:
            graph.run()
            if watch:
                watch(graph, done, objects)
    graph.run()
    graph.check()
    return graph, [{number: node.time_ns for number, node in nodes.items()} for nodes in objects]


def simulate(job: Job) -> list[dict]:
    """The oracle: knows the whole job, goes forward in time, and computes every completion from
    nothing at each step.

    Of the transfers under way the one that ends first is accepted: whatever starts later cannot
    change it.
    """
    model = SmallModel()
    # transfers: key -> list of (rank, index of its launch); ends: key -> time
    issued, parts = {}, {}
    for rank, program in enumerate(job.programs):
        for index, call in enumerate(program):
            if call[0] == "meet":
                parts.setdefault(("meet", call[1]), []).append((rank, index))
            for kind, size, peer in call[4] if call[0] == "launch" else ():
                me = job.comms[call[1]].index(rank)
                lane = (
                    (call[1],)
                    if kind < 8
                    else (call[1], me, peer)
                    if kind == 8
                    else (call[1], peer, me)
                )
                count = issued[rank, kind, lane] = issued.get((rank, kind, lane), -1) + 1
                if kind < 8:  # collectives of all kinds share one order
                    count = issued[rank, lane] = issued.get((rank, lane), -1) + 1
                parts.setdefault((lane, count), []).append((rank, index))
                issued.setdefault(("what", lane, count), (kind, size, peer))
                issued.setdefault(("of", rank, index), []).append((lane, count))
    times = [{0: 0} for _ in job.programs]
    accepted, running = {}, {}

    def head_time(rank, head):
        if any(head[i] not in times[rank] for i in range(0, len(head), 3)):
            return None
        return max(times[rank][head[i]] + head[i + 1] + head[i + 2] for i in range(0, len(head), 3))

    def call_head(rank, index):
        call = job.programs[rank][index]
        return head_time(rank, call[-2] if call[0] == "launch" else call[-1])

    def plan_of(key):
        lane, _ = key
        kind, size, _ = issued[("what", *key)]
        gpus = job.comms[lane[0]]
        if kind < 8:
            return model.plan(kind, gpus, size)
        _, source, destination = lane
        ops = {}  # of the launches at both ends: (kind, own rank, peer, bytes)
        for rank, index in parts[key]:
            me = gpus.index(rank)
            for op_kind, op_size, peer in job.programs[rank][index][4]:
                ops.setdefault(me, []).append((op_kind, peer, op_size))
        sent = [n for op_kind, peer, n in ops[source] if op_kind == 8 and peer != source]
        received = [
            n for op_kind, peer, n in ops[destination] if op_kind == 9 and peer != destination
        ]
        if source == destination:  # both ends are one launch, which is listed twice
            sent, received = sent[: len(sent) // 2], received[: len(received) // 2]
        named = {source, destination} | {peer for own in ops.values() for _, peer, _ in own}
        return model.plan_message(
            gpus[source],
            gpus[destination],
            size,
            sent=(len(sent), sum(sent)),
            received=(len(received), sum(received)),
            gpus=len(named),
            members=gpus,
        )

    while True:
        progress = True
        while progress:  # everything that needs no further completion
            progress = False
            for rank, program in enumerate(job.programs):
                for index, call in enumerate(program):
                    number = {"define": 1, "meet": 3, "launch": 2}[call[0]]
                    number = call[number]
                    if number in times[rank]:
                        continue
                    if call[0] == "define":
                        time = call_head(rank, index)
                    elif call[0] == "meet":
                        heads = [call_head(*part) for part in parts["meet", call[1]]]
                        time = None if None in heads else max(heads) + 1
                    else:
                        keys = issued[("of", rank, index)]
                        time = (
                            max(accepted[key] for key in keys)
                            if all(key in accepted for key in keys)
                            else None
                        )
                    if time is not None:
                        times[rank][number] = time
                        progress = True
            for key, members in parts.items():
                if key[0] != "meet" and key not in running:
                    heads = [call_head(*part) for part in members]
                    if None not in heads:
                        running[key] = max(heads)
        open_keys = [key for key in running if key not in accepted]
        if not open_keys:
            return [{number: time for number, time in own.items() if number} for own in times]
        flows = FlowSimulator(CAPACITIES)
        handles = {
            key: [
                flows.add(start + plan_of(key).before_ns, f.links, f.size_bytes, f.rate_cap)
                for f in plan_of(key).flows
                if f.size_bytes
            ]
            for key, start in sorted(running.items(), key=lambda item: item[1])
        }
        ends = {}
        for key in open_keys:
            plan, done = plan_of(key), [flows.completion_ns(handle) for handle in handles[key]]
            last = max(done, default=0)
            end = max(last, running[key] + plan.before_ns) + plan.after_ns
            ends[key] = (last, max(end, running[key] + 1, last + 1 if done else 0))
        first = min(open_keys, key=lambda key: ends[key])
        accepted[first] = ends[first][1]


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 14), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_what_is_settled_behind_the_lower_bound_never_moves(seed, ranks, events, order):
    """With the best lower bound there is (known from the oracle), the release rule only lets final
    times out, commits at that bound change nothing, and nothing comes late."""
    job = make_job(random.Random(seed), ranks, events)
    final = [{0: 0, **own} for own in simulate(job)]

    def issue_time(rank, call):
        head = call[-2] if call[0] == "launch" else call[-1]
        return max(final[rank][head[i]] + head[i + 1] + head[i + 2] for i in range(0, len(head), 3))

    leasts = {}  # of equal launches

    def watch(graph, done, objects):
        open_calls = [
            (rank, call)
            for rank, program in enumerate(job.programs)
            for call in program[done[rank] :]
        ]
        lbts = min((issue_time(rank, call) for rank, call in open_calls), default=1 << 60)
        for rank, nodes in enumerate(objects):
            for number, node in nodes.items():
                if node.settled_ns is not None and node.settled_ns <= lbts:
                    assert node.time_ns == final[rank][number]
                elif node.time_ns is None:
                    assert final[rank][number] > lbts
        check_floors(graph, objects, lbts, final)
        for rank, program in enumerate(job.programs):
            launches = [call for call in program[: done[rank]] if call[0] == "launch"]
            for call, least in zip(launches, graph.alone_ns(rank, [call[2] for call in launches])):
                longer_ns = final[rank][call[2]] - issue_time(rank, call) - least
                if least:
                    hypothesis.event(f"a launch takes {'longer' if longer_ns else 'its least'}")
                    assert longer_ns >= 0
                    same = [call[1], *call[4]]
                    assert leasts.setdefault(repr(same), least) == least
        graph.commit(lbts)

    graph, times = replay(job, random.Random(order), 0.7, watch)
    assert [{0: 0, **own} for own in times] == final
    assert graph.late == 0
    graph.commit(1 << 61)
    assert graph.size() == 0


def check_floors(graph, objects, lbts, final):
    """No vertex comes before the time that clients are told as the earliest."""
    for rank, nodes in enumerate(objects):
        floors, known = graph.earliest_ns(rank, list(nodes), lbts)
        for index, (number, node) in enumerate(nodes.items()):
            assert floors[index] <= final[rank][number]
            settled = node.settled_ns is not None and node.settled_ns <= lbts
            assert (index in known) == settled
            assert floors[index] == node.time_ns if settled else floors[index] >= lbts
        terms = [(node, 3 * place) for place, node in enumerate(nodes.values())]
        latest = max((final[rank][number] + 3 * i for i, number in enumerate(nodes)), default=0)
        assert expression_earliest_ns(TimeExpression(0, terms), lbts) <= latest


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 14), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_the_timeline_is_the_oracles(seed, ranks, events, order):
    job = make_job(random.Random(seed), ranks, events)
    _, times = replay(job, random.Random(order), 0.5)
    assert times == simulate(job)


def test_two_hundred_orders_give_one_timeline():
    job = make_job(random.Random(7), 5, 40)
    expected = simulate(job)
    moved = 0
    for order in range(200):
        graph, times = replay(job, random.Random(order), (order % 4) / 3)
        moved += graph.retimed
        assert times == expected
    assert moved > 200  # the orders really made the simulator change its mind


def test_what_a_commit_drops_needs_no_garbage_collector():
    """Reference counts must free history: the hub's collector runs so rarely that cycles pile up."""
    job = with_contention(make_job(random.Random(5), 4, 200), random.Random(5))
    vertices = (Transfer, LaunchBegin, LaunchEnd, Rendezvous)
    gc.collect()
    gc.disable()
    try:
        graph, _ = replay(job, random.Random(6), 0.3)
        graph.commit(LATEST_NS)
        assert graph.size() == 0
        seen = map(type, gc.get_objects())  # isinstance would ask what an object says it is
        left = [one.__name__ for one in seen if issubclass(one, vertices)]
    finally:
        gc.enable()
    assert Counter(left) == Counter()


def with_contention(job: Job, rng: random.Random) -> Job:
    """The same job, with work that communication beside it stretches."""

    def heads(call):
        flat = call[-2] if call[0] == "launch" else call[-1]
        for i in range(2, len(flat), 3):
            if flat[i] and rng.random() < 0.7:
                flat[i] = [flat[i], rng.randint(1, 60)]

    for program in job.programs:
        for call in program:
            heads(call)
    return job


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 14), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_with_contention_the_order_does_not_matter_and_final_means_final(
    seed, ranks, events, order
):
    job = with_contention(make_job(random.Random(seed), ranks, events), random.Random(seed + 1))
    reference, expected = replay(job, random.Random(0), 1.0)
    final = [{0: 0, **own} for own in expected]
    begun = [{} for _ in job.programs]  # when each call's head was reached
    for rank, program in enumerate(job.programs):
        for index, call in enumerate(program):
            begun[rank][index] = reference.expression(
                rank, call[-2] if call[0] == "launch" else call[-1]
            ).reach()[0]

    def watch(graph, done, objects):
        lbts = min(
            (
                begun[rank][index]
                for rank, program in enumerate(job.programs)
                for index in range(done[rank], len(program))
            ),
            default=1 << 60,
        )
        for rank, nodes in enumerate(objects):
            for number, node in nodes.items():
                if node.settled_ns is not None and node.settled_ns <= lbts:
                    assert node.time_ns == final[rank][number]
        check_floors(graph, objects, lbts, final)
        for rank in range(len(objects)):
            heads = [
                call[-2] if call[0] == "launch" else call[-1]
                for call in job.programs[rank][done[rank] :]
            ]
            named = [head[i] for head in heads for i in range(0, len(head), 3)]
            graph.forget(rank, min(named, default=1 << 30))
        graph.commit(lbts)

    graph, times = replay(job, random.Random(order), 0.7, watch)
    assert times == expected
    assert graph.late == 0
    graph.commit(1 << 61)
    assert graph.size() == 0


def test_contention_makes_steps_longer():
    job = make_job(random.Random(7), 5, 40)
    plain = replay(job, random.Random(1), 1.0)[1]
    slower = replay(with_contention(job, random.Random(2)), random.Random(1), 1.0)[1]
    assert (
        all(
            slow[number] >= time for own, slow in zip(plain, slower) for number, time in own.items()
        )
        and slower != plain
    )
