"""Why a step on two or four GPUs is longer than on one: one visit to a machine with several GPUs.

    python3 -m bench.gpus.measure OUT_DIR [--seconds 380] [--tiny] [--only NAMES] [--no-trace]

Why it exists: see README.md. This process starts the sampler and one rank per GPU, and starts the
ranks again with the parts that are left when one of them fails or hangs. Every file in OUT_DIR is
written as it comes, so that a visit cut off loses nothing; a further call goes on where it ended.
Rule: clocks, limits and MIG are never set, and NVLink multicast stays off.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
START_LIMIT_S = 90.0
RESTART_S = 40.0  # what must be left to start ranks again


def machine() -> dict:
    """What the GPUs are; a chip's UUID says whether a later visit meets it again."""
    import pynvml

    pynvml.nvmlInit()
    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu: dict = {}
        for key, call in {
            "name": pynvml.nvmlDeviceGetName,
            "uuid": pynvml.nvmlDeviceGetUUID,
            "limit_mw": pynvml.nvmlDeviceGetEnforcedPowerLimit,
            "celsius": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, 0),
            "sm_mhz_max": lambda handle: pynvml.nvmlDeviceGetMaxClockInfo(handle, 1),
            "memory_mhz": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, 2),
        }.items():
            try:
                gpu[key] = call(handle)
            except pynvml.NVMLError as error:
                gpu[key] = str(error)
        gpus.append(gpu)
    driver = pynvml.nvmlSystemGetDriverVersion()
    pynvml.nvmlShutdown()
    return {"row": "machine", "driver": driver, "cpus": os.cpu_count(), "gpus": gpus}


def read(folder: Path) -> list[dict]:
    path = folder / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(folder: Path, line: dict) -> None:
    with open(folder / "results.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


class Ranks:
    """One process per GPU."""

    def __init__(self, world: int, arguments: list[str], deadline: float, port: int) -> None:
        common = {
            **os.environ,
            **NO_MULTICAST,
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "BENCH_DEADLINE": str(deadline),
            "PYTHONUNBUFFERED": "1",
        }
        for key, value in {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}.items():
            common.setdefault(key, value)
        command = [sys.executable, "-m", "bench.gpus.measure", *arguments]
        self.processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world)
        ]

    def codes(self) -> list[int | None]:
        return [process.poll() for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()


def watch(ranks: Ranks, folder: Path, deadline: float, part_limit: float) -> str | None:
    """None when all ranks ended well, else what went wrong (and no rank is left)."""
    begin = changed = time.monotonic()
    lines = size = 0
    while True:
        time.sleep(0.2)
        codes, now = ranks.codes(), time.monotonic()
        if all(code == 0 for code in codes):
            return None
        path = folder / "results.jsonl"
        if path.exists() and path.stat().st_size != size:
            size, changed, lines = path.stat().st_size, now, lines + 1
        limit = part_limit if lines > 1 else START_LIMIT_S
        wrong = None
        if any(code for code in codes):
            time.sleep(1.0)  # so that the others' own errors are printed too
            wrong = f"ended with {codes}"
        elif now > deadline:
            wrong = "out of time"
        elif now - changed > limit:
            wrong = f"nothing for {limit:.0f} s (began {now - begin:.0f} s ago)"
        if wrong:
            ranks.kill()
            return wrong


def measure(options) -> None:
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    try:
        about = machine()
    except Exception as error:  # without NVML there are steps and traces still
        about = {"row": "machine", "failed": repr(error), "gpus": [{}] * 4}
        print(f"no NVML: {error!r}", flush=True)
    append(folder, {**about, "at": time.time_ns(), "argv": sys.argv[1:]})
    world = min(options.gpus or 4, len(about["gpus"]))
    world = max(n for n in (1, 2, 4) if n <= world)
    sampler = subprocess.Popen(
        [sys.executable, "-m", "bench.gpus.sampler", str(folder / "samples.csv")], cwd=ROOT
    )
    print(f"{world} ranks, {options.seconds:.0f} s", flush=True)
    ranks = None
    try:
        port = 29541
        while deadline - time.monotonic() > (0 if port == 29541 else RESTART_S):
            ranks = Ranks(world, sys.argv[1:], deadline, port)
            wrong = watch(ranks, folder, deadline, options.part_limit)
            port += 1
            if not wrong:
                break
            parts = [row["part"] for row in read(folder) if row["row"] == "begin"]
            append(folder, {"row": "failed", "part": parts[-1] if parts else "start", "why": wrong})
            print(f"FAILED in {parts[-1] if parts else 'the start'}: {wrong}", flush=True)
            if not parts and port > 29543:
                break
    finally:
        if ranks:
            ranks.kill()
        sampler.send_signal(signal.SIGTERM)
        sampler.wait()
    from bench.gpus.summary import show

    show(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=380.0, help="after which all ends")
    parser.add_argument("--part-limit", type=float, default=75.0, help="longer is taken for a hang")
    parser.add_argument("--gpus", type=int, help="use so many (1, 2 or 4)")
    parser.add_argument("--tiny", action="store_true", help="two layers, two steps: a rehearsal")
    parser.add_argument("--steps", type=int, help="timed steps, in place of each shape's own")
    parser.add_argument("--only", help="parts whose names contain one of these, with commas")
    parser.add_argument("--no-trace", action="store_true")
    options = parser.parse_args()
    options.folder = str(Path(options.folder).resolve())
    if "RANK" in os.environ:
        from bench.gpus import ranks

        ranks.main(options)
    else:
        measure(options)


if __name__ == "__main__":
    main()
