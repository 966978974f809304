"""CPU time of the hub per message, with real sockets and a synthetic FSDP job.

Why it exists: 128 ranks on two cores leave the hub little; this is the figure to watch when
handlers change. Ranks live in one driver process, which sends what 24 collectives and one
synchronisation per step send. Usage: python -m bench.hub.cpu [--ranks 8 32 128] [--steps 40].
Prints one line per size, from hub.json of each run.
"""

import argparse
import tempfile
from pathlib import Path

from tests.hub.client import Client, form
from tests.hub.running import start_hub

COLLECTIVES = 24
ALL_GATHER, REDUCE_SCATTER, BF16, SUM = 1, 2, 9, 0


def drive(run_dir: Path, ranks: int, per_node: int, steps: int) -> None:
    """Runs the job of `ranks` ranks from this process."""
    clients = [Client(run_dir, rank, rank // per_node, timeout_ms=120_000) for rank in range(ranks)]
    comm = form(clients, devices=[rank % per_node for rank in range(ranks)])
    for _ in range(steps):
        for i in range(COLLECTIVES):
            for client in clients:
                client.compute(300_000 + client.rank)
                client.advance(40_000)
                kind = REDUCE_SCATTER if i % 3 == 0 else ALL_GATHER
                before = client.stream
                node = client.ops(comm, [kind, 4 << 20, BF16, SUM, -1, None, 0])
                client.stalled = [0, client.host_head() + before, [node, 0, 0]]
        syncs = [client.start_sync({"stalls": [client.stalled]}) for client in clients]
        for client, sync in zip(clients, syncs, strict=True):
            client.finish_sync(*sync)
    for client in clients:
        client.bye()


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    print("ranks  messages  hub CPU us/message  rollbacks  simulated s")
    for ranks in options.ranks:
        per_node = min(8, ranks)
        with tempfile.TemporaryDirectory(prefix="ph-") as folder:
            hub = start_hub(Path(folder) / "run", nodes=ranks // per_node, gpus_per_node=per_node)
            idle_ns = start_cpu_ns(hub.process.pid)
            try:
                drive(hub.run_dir, ranks, per_node, options.steps)
            finally:
                result = hub.stop()
            spent = (result["hub_cpu_ns"] - idle_ns) / result["messages"] / 1e3
            seconds = result["simulated_ns"] / 1e9
            print(
                f"{ranks:5}  {result['messages']:8}  {spent:18.1f}  {result['rollbacks']:9}  {seconds:11.3f}",
                flush=True,
            )


def start_cpu_ns(pid: int) -> int:
    """CPU time that the hub spent on starting: imports, topology, table."""
    import time

    return time.clock_gettime_ns((~pid << 3) | 2)


if __name__ == "__main__":
    main()
