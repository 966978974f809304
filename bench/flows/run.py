"""How fast is the flow simulator? Flows per second on collectives and on a fat tree; what a
rollback costs against its depth.

Why it exists: a claim of speed must be repeatable. `python -m bench.flows.run [--engine
native|python] [--full]` prints one line per measurement; --full adds the all-to-all of 432 hosts
with sizes that differ, which takes minutes. `simgrid/compare.py` beside it runs the same schedules
through SimGrid too.
"""

import argparse
import time

from bench.flows import schedules
from phantora_ns.sim._flow_engine import PythonEngine
from phantora_ns.sim._flow_native import NativeEngine
from phantora_ns.sim.flows import FlowSimulator


def measure(name, flows, function):
    before = time.perf_counter(), time.process_time()
    simulator, makespan = function()
    wall, cpu = time.perf_counter() - before[0], time.process_time() - before[1]
    print(
        f"{name:52s} {flows:8d} flows {flows / cpu:12,.0f} flows/s (CPU {cpu:8.3f} s, wall {wall:8.3f} s)"
        f" {simulator.events:8d} events, makespan {makespan:,} ns",
        flush=True,
    )


def run_ring(engine, hosts, flows):
    """Each hop a flow, each step a group of them: what the timeline does for a collective."""
    simulator = FlowSimulator(schedules.star(hosts), engine=engine)
    step = simulator.group(next(schedules.ring_steps(hosts, hosts)))
    now = 0
    for _ in schedules.ring_steps(hosts, flows):
        now = simulator.completion_ns(simulator.add_group(now, step))
        simulator.commit(now)
    return simulator, now


def run_ring_singly(engine, hosts, flows):
    """The same with a handle for each flow, and its completion read."""
    simulator = FlowSimulator(schedules.star(hosts), engine=engine)
    now = 0
    for step in schedules.ring_steps(hosts, flows):
        handles = [simulator.add(now, route, size) for route, size in step]
        now = max(map(simulator.completion_ns, handles))
        simulator.commit(now)
    return simulator, now


def run_ring_as_one(engine, hosts, steps):
    """The same ring as one flow that needs all its links at once: how a pipelined ring behaves, and
    one object."""
    simulator = FlowSimulator(schedules.star(hosts), engine=engine)
    links = [link for route, _ in next(schedules.ring_steps(hosts, hosts)) for link in route]
    now = 0
    for _ in range(steps):
        now = simulator.completion_ns(simulator.add(now, links, 1 << 20))
        simulator.commit(now)
    return simulator, now


def run_all_to_all(engine, capacities, flows):
    simulator = FlowSimulator(capacities, engine=engine)
    handles = [simulator.add(0, route, size) for route, size in flows]
    return simulator, max(map(simulator.completion_ns, handles))


def run_random(engine, flows):
    simulator = FlowSimulator(schedules.fat_tree(), engine=engine)
    handles = [simulator.add(*flow) for flow in flows]
    return simulator, max(map(simulator.completion_ns, handles))


def rollback_depths(engine):
    """A flow inserted d flows back in a long schedule on the fat tree, and all that it moves
    computed again."""
    flows = schedules.random_pairs(432, 20_000, 20_000_000)
    for depth in (1, 10, 100, 1000, 10_000):
        simulator = FlowSimulator(schedules.fat_tree(), engine=engine)
        handles = [simulator.add(*flow) for flow in flows]
        simulator.completion_ns(max(handles, key=simulator.completion_ns))
        events, start = simulator.events, flows[-depth][0]
        before = time.process_time()
        late = simulator.add(start, flows[0][1], 100_000)
        simulator.completion_ns(late)
        cost = time.process_time() - before
        again = simulator.events - events
        print(
            f"rollback {depth:6d} flows deep: {cost * 1e3:9.3f} ms, {again:6d} events run again",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["native", "python"], default="native")
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    engine = NativeEngine if arguments.engine == "native" else PythonEngine
    scale = 1 if arguments.engine == "native" else 10
    for hosts, flows in ((128, 256_000), (1024, 256_000), (8192, 262_144)):
        flows = max(hosts, flows // scale)
        measure(
            f"ring of {hosts}, hop by hop", flows, lambda h=hosts, f=flows: run_ring(engine, h, f)
        )
        measure(
            f"ring of {hosts}, hop by hop, handle by handle",
            flows,
            lambda h=hosts, f=flows: run_ring_singly(engine, h, f),
        )
    for hosts in (128, 1024, 8192):
        measure(
            f"ring of {hosts}, one flow over all hops",
            200 * hosts,
            lambda h=hosts: run_ring_as_one(engine, h, 200),
        )
    for hosts, equal in ((64, True), (64, False), (432, True), (432, False)):
        if (hosts == 432 and not equal and not arguments.full) or (
            hosts == 432 and arguments.engine == "python"
        ):
            continue
        flows = schedules.all_to_all(hosts, equal)
        sizes = "equal sizes" if equal else "sizes that differ"
        name = f"all-to-all of {hosts} hosts of a fat tree, {sizes}"
        measure(name, len(flows), lambda f=flows: run_all_to_all(engine, schedules.fat_tree(), f))
    flows = schedules.random_pairs(432, 186_192 // scale, 186_192_000 // scale)
    measure(
        "random pairs on the fat tree, one flow per us",
        len(flows),
        lambda: run_random(engine, flows),
    )
    rollback_depths(engine)


if __name__ == "__main__":
    main()
