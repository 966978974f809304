"""A synthetic FSDP job by real processes, in whatever order the machine runs them: its times repeat
to the nanosecond."""

import multiprocessing
import random

import pytest
from client import ALL_GATHER, ALL_REDUCE, BF16, FP32, REDUCE_SCATTER, SUM, Client

RANKS, PER_NODE, LAYERS, STEPS = 8, 4, 4, 5


def train(run_dir, rank, seed, pipe):
    """One rank: tensor-parallel pairs inside a server, sharded data parallelism across all; times
    of its steps."""
    rng = random.Random(seed * 1000 + rank)  # decides only when the process dawdles in real time
    client = Client(run_dir, rank, rank // PER_NODE, timeout_ms=60_000, world=RANKS)
    world = client.init(b"world", RANKS, rank, rank % PER_NODE)
    tensor, _, _ = client.finish_split(*client.start_split(world, rank // 2, rank))
    data, _, _ = client.finish_split(*client.start_split(world, rank % 2, rank))
    times = []
    for _ in range(STEPS):
        for _ in range(LAYERS):
            client.advance(20_000 + 100 * rank)
            gathered = client.ops(data, [ALL_GATHER, 1 << 20, BF16, -1, -1, None, 0])
            client.compute(150_000 + 1_000 * (rank % 3))
            client.ops(tensor, [ALL_REDUCE, 4 << 20, BF16, SUM, -1, None, 0])
            client.stream += [gathered, 0, 50_000]
            if rng.random() < 0.1:
                sum(range(rng.randrange(300_000)))
            if rng.random() < 0.2:
                client.query([gathered, 0, 0])
            client.ops(data, [REDUCE_SCATTER, 1 << 20, BF16, SUM, -1, None, 0])
        loss = client.ops(world, [ALL_REDUCE, 4, FP32, SUM, -1, bytes(4), 1])
        times.append(client.sync())
        assert client.fetch(loss) == bytes(4)
        client.advance(10_000)
    client.bye()
    pipe.send(times)
    pipe.close()


def run(hub, seed) -> tuple[list, dict]:
    context = multiprocessing.get_context("forkserver")
    pipes, processes = [], []
    for rank in random.Random(seed).sample(range(RANKS), RANKS):
        ours, theirs = context.Pipe(duplex=False)
        processes.append(context.Process(target=train, args=(hub.run_dir, rank, seed, theirs)))
        processes[-1].start()
        theirs.close()
        pipes.append((rank, ours))
    try:
        times = [pipe.recv() for _, pipe in sorted(pipes, key=lambda item: item[0])]
    finally:
        for process in processes:
            process.join(1)
            process.kill()
            process.join()
        for _, pipe in pipes:
            pipe.close()
    return times, hub.stop()


@pytest.mark.slow
def test_the_same_job_three_times(hub_of):
    found = [run(hub_of(gpus_per_node=PER_NODE), seed) for seed in range(3)]
    times, result = found[0]
    assert all(other == times for other, _ in found[1:])
    assert all(earlier < later for rank in times for earlier, later in zip(rank, rank[1:]))
    for other in (result, *[r for _, r in found]):
        assert (
            other["simulated_ns"] >= max(times[0])
            and other["bad_messages"] == 0
            and other["errors"] == []
        )
        assert sorted(
            (c["rank"], c["node"], c["device"], c["comm_ns"]) for c in other["clients"]
        ) == sorted((c["rank"], c["node"], c["device"], c["comm_ns"]) for c in result["clients"])
    assert {other["revised"] for _, other in found} == {0}
