"""Measures the jobs of zoo.toml on the one GPU of this machine, and records their kernels.

    python -m bench.zoo.visit OUT_DIR [--budget 560] [--only NAME,NAME] [--skip real,calibration,evaluation]
                                      [--traces] [--lanes N]

Why it exists: real steps and recorded kernels of one chip belong together. First every job runs for real,
alone. Then a leader records the calibration jobs into OUT_DIR/calibration.sqlite, and the evaluation
jobs into OUT_DIR/evaluation.sqlite, which never ships: it says what a user with one GPU gets.
OUT_DIR/zoo.jsonl gets a line per run as it ends. With --lanes 2 the next led job loads its libraries while
one uses the GPU. With --traces a real run also writes OUT_DIR/NAME.json, a Kineto trace of one step. No run
is started that would not end within the budget (seconds).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.accuracy.programs import RESULT
from bench.frameworks.real import machine, run

HERE = Path(__file__).resolve().parent
REAL_S, LED_S = 60, 150
"""Seconds after which a run counts as hung."""
NEEDED_S = {"real": 20, "calibration": 40, "evaluation": 40}
"""What a run takes, at most."""
LOG_CHARACTERS = 6000


def jobs() -> list[dict[str, str]]:
    """name, set and flags of each."""
    return tomllib.loads((HERE / "zoo.toml").read_text())["job"]


def command(job: dict[str, str], how: str, out: Path, traces: bool) -> list[str]:
    """The job for real, or led by the GPU, which records it."""
    script = ["--nproc-per-node", "1", "-m", "bench.zoo.train", *job["flags"].split()]
    if how == "real":
        script += ["--trace", str(out / f"{job['name']}.json")] if traces else []
        return [sys.executable, "-m", "torch.distributed.run", *script]
    database = out / f"{how}.sqlite"
    script += ["--alone", str(out / "gpu.lock")]
    ours = ["profile", "--record", "kernels", "--name", job["name"], "-o", str(database)]
    return [sys.executable, "-m", "phantora_ns", *ours, "torchrun", *script]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--only", help="these jobs, comma-separated")
    parser.add_argument("--skip", default="", help="of real, calibration, evaluation")
    parser.add_argument("--traces", action="store_true", help="of real runs")
    parser.add_argument("--lanes", type=int, default=1, help="led jobs at once; one uses the GPU")
    options = parser.parse_args()
    out, begin = options.out.resolve(), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [job for job in jobs() if not options.only or job["name"] in options.only.split(",")]
    plan = [(job, "real") for job in chosen]
    plan += [
        (job, how) for how in ("calibration", "evaluation") for job in chosen if job["set"] == how
    ]

    def keep(line: dict) -> None:
        with (out / "zoo.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    keep({"how": "machine"} | machine())

    def one(job: dict[str, str], how: str) -> None:
        if time.monotonic() - begin + NEEDED_S[how] > options.budget:
            print(f"left out, no time: {job['name']} {how}", flush=True)
            return
        status, log, seconds = run(
            command(job, how, out, options.traces), {}, REAL_S if how == "real" else LED_S
        )
        found = RESULT.findall(log)
        line = {
            "name": job["name"],
            "set": job["set"],
            "how": how,
            "status": status,
            "wall_s": round(seconds, 1),
        }
        keep(line | {"result": json.loads(found[-1]) if found else None})
        with (out / "logs.txt").open("a") as stream:
            stream.write(f"==== {job['name']} {how}\n{log[-LOG_CHARACTERS:]}\n")
        shown = f"{json.loads(found[-1])['median_s'] * 1e3:.2f} ms" if found else "no result"
        print(
            f"{time.monotonic() - begin:6.1f} {job['name']:24s} {how:11s} {status} {seconds:5.1f} s {shown}",
            flush=True,
        )

    wanted = [(job, how) for job, how in plan if how not in options.skip.split(",")]
    for job, how in wanted:
        if how == "real":
            one(job, how)
    with ThreadPoolExecutor(options.lanes) as pool:
        for future in [pool.submit(one, job, how) for job, how in wanted if how != "real"]:
            future.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
