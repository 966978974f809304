"""Why it exists: a job launches thousands of kernels a step, so the launch is what it pays most
for."""

import ctypes
import subprocess

from bench.micro.conftest import HERE, ROOT

LAUNCHES = 5_000
SIGNATURES = 10_000


def test_launches_on_the_warm_path(benchmark, compiled, library, rank):
    """5,000 launches of one kernel and a synchronisation after each 500, the signature known."""
    program = compiled("launches", HERE / "launches.c", library, "-ldl")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([program], env=rank, **pipes) as job:

        def launch():
            print(LAUNCHES, file=job.stdin, flush=True)
            return job.stdout.readline()

        benchmark.extra_info["launches"] = LAUNCHES
        answer = benchmark.pedantic(launch, warmup_rounds=2, rounds=30)
        job.stdin.close()
    assert answer == "done\n" and job.returncode == 0


def test_packing(benchmark, compiled):
    """10,000 signatures of a kernel, packed."""
    sources = [HERE / "packing.c", ROOT / "libintercept" / "base" / "msgpack.c"]
    pack = ctypes.CDLL(compiled("packing.so", *sources, "-shared", "-fPIC")).pack_signatures
    benchmark.extra_info["signatures"] = SIGNATURES
    assert benchmark(pack, SIGNATURES) > 100
