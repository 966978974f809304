"""Measures one machine's GPUs for a GPU model that has no kernel times of its own yet.

    python3 -m bench.gpu_models.visit OUT_DIR --gpu h100 [--gpus 1] [--budget 560] [--only NAME,NAME] [--led]

Why it exists: times that are scaled from another model by data sheets are worth what was measured of it on
this one. plan.toml says what is run: jobs for real, alone, which judge; and jobs and sweeps that a leader
records into one database, which teach. Clock, power and energy of every GPU are sampled throughout, so each
recording has its clock. OUT_DIR/parts.jsonl gets a line per part as it ends, logs.txt the end of its log,
led.sqlite what was recorded. No part is started that would not end within the budget (seconds). With --led each real
job is led by the GPU right after it has run, so that both steps are of one chip and one host.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from bench.accuracy.programs import RESULT
from bench.frameworks.real import machine, run

HERE = Path(__file__).resolve().parent
LOG_CHARACTERS = 3000
HUNG = 2.5
"""A part that takes so many times what it is given counts as hung."""
LED_SECONDS = 30
"""What a led job is given beyond its real run: the launcher, the hub, and the samples of every kernel."""


def plan() -> list[dict]:
    """name, gpus, how, set, seconds and flags of each part."""
    return [{"gpus": 1, **p} for p in tomllib.loads((HERE / "plan.toml").read_text())["part"]]


def led_too(parts: list[dict]) -> list[dict]:
    """Each real job, and after it the same one with a leader."""
    return [
        one
        for part in parts
        if part["how"] == "real"
        for one in (
            part,
            part
            | {"name": f"{part['name']}-led", "how": "led", "set": "leader"}
            | {"seconds": part["seconds"] + LED_SECONDS},
        )
    ]


def command(part: dict, out: Path, gpu: str) -> list[str]:
    """A job for real, or led by the GPU, which records it; or a script that is given the folder. A led job
    may believe in more ranks than there are GPUs."""
    if part["how"] == "script":
        return [sys.executable, "-m", *part["flags"].replace("OUT", str(out)).split()]
    ranks = part.get("ranks", part["gpus"])
    job = ["--nproc-per-node", str(ranks), "-m", *part["flags"].split()]
    if part["how"] == "real":
        return [sys.executable, "-m", "torch.distributed.run", *job]
    options = ["--set", f"gpu={gpu}", "--record", "kernels"]
    options += ["--leaders", part.get("leaders", "0")]
    options += ["--name", part["name"], "-o", str(out / "led.sqlite")]
    return [sys.executable, "-m", "phantora_ns", "profile", *options, "torchrun", *job]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", required=True, help="the model, as in cluster files")
    parser.add_argument("--gpus", type=int, default=1, help="the parts for so many")
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--only", help="these parts, comma-separated")
    parser.add_argument("--led", action="store_true", help="each real job also with a leader")
    options = parser.parse_args()
    out, start = options.out.resolve(), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    samples = out / "samples.csv"
    sampler = subprocess.Popen([sys.executable, "-m", "bench.gpus.sampler", str(samples), "20"])

    def keep(line: dict) -> None:
        with (out / "parts.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    keep({"how": "machine", "begin_ns": time.time_ns()} | machine())
    try:
        chosen = [
            part
            for part in plan()
            if part["gpus"] == options.gpus
            and (not options.only or part["name"] in options.only.split(","))
        ]
        for part in led_too(chosen) if options.led else chosen:
            left = options.budget - (time.monotonic() - start)
            if part["seconds"] > left:
                print(f"left out, no time: {part['name']}", flush=True)
                continue
            begin_ns = time.time_ns()
            status, log, seconds = run(
                command(part, out, options.gpu), {}, min(HUNG * part["seconds"], left)
            )
            found = RESULT.findall(log)
            result = json.loads(found[-1]) if found else None
            keep(
                part
                | {"status": status, "begin_ns": begin_ns, "end_ns": time.time_ns()}
                | {"result": result}
            )
            with (out / "logs.txt").open("a") as stream:
                stream.write(f"==== {part['name']} {part['how']}\n{log[-LOG_CHARACTERS:]}\n")
            shown = f"{result['median_s'] * 1e3:.2f} ms" if result else log.strip()[-200:]
            print(
                f"{time.monotonic() - start:6.1f} {part['name']:26s} {part['how']:5s} {status} "
                f"{seconds:5.1f} s {shown}",
                flush=True,
            )
    finally:
        if sampler.poll() is not None:
            print("the sampler ended early: no clocks", flush=True)
        sampler.terminate()
        sampler.wait()
    if samples.exists():
        (out / "samples.csv.xz").write_bytes(lzma.compress(samples.read_bytes()))
        samples.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
