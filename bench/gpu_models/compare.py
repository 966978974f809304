"""Simulates the jobs that visit.py ran for real on a GPU model, and says how far the steps are off.

    python -m bench.gpu_models.compare --gpu h100 [--gpus 1,2] [--only NAME,NAME] [--jobs N] [--predict]
                                       [--keep FILE] [-- PHANTORA-NS OPTIONS]

Why it exists: accuracy on a GPU model other than the H200 is claimed only from runs on it. Judged by the
median step of each job; sets are kept apart. data/GPU-*.jsonl are the real runs. --predict simulates the jobs that
have not run yet. --keep appends a JSON line of all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.accuracy.programs import RESULT
from bench.gpu_models.visit import plan

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SECONDS = 600


def unmeasured(gpu: str) -> list[dict]:
    """The parts of plan.toml that judge, and that have not run yet."""
    done = {part["name"] for part in real(gpu)}
    return [
        part
        for part in plan()
        if part["how"] == "real" and part["set"] == "evaluation" and part["name"] not in done
    ]


def real(gpu: str) -> list[dict]:
    """The parts that ran for real, and their results."""
    rows = [
        json.loads(line)
        for path in sorted((HERE / "data").glob(f"{gpu}-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [row for row in rows if row["how"] == "real" and row.get("result")]


def simulate(part: dict, gpu: str, extra: list[str]) -> dict:
    """The job's own result, and the sources of kernel times, under phantora-ns."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "phantora_ns", "--set", f"gpu={gpu}"]
        command += ["--report", str(report), *extra]
        command += ["torchrun", "--nproc-per-node", str(part["gpus"]), "-m", *part["flags"].split()]
        # The user's own recordings must not count.
        surroundings = os.environ | {"XDG_DATA_HOME": folder}
        done = subprocess.run(
            command, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=SECONDS
        )
        found = RESULT.findall(done.stdout)
        if not found:
            return {"failed": (done.stdout + done.stderr)[-1500:]}
        return {"result": json.loads(found[-1]), "report": json.loads(report.read_text())}


def row(part: dict, simulated: dict) -> dict:
    own, other = part["result"], simulated["result"]
    band = (simulated["report"].get("step") or {}).get("band")
    inside = band and band["low_ns"] <= 1e9 * own["median_s"] <= band["high_ns"]
    return {
        "name": part["name"],
        "gpus": part["gpus"],
        "set": part["set"],
        "real_ms": round(1e3 * own["median_s"], 2),
        "simulated_ms": round(1e3 * other["median_s"], 2),
        "error": round(other["median_s"] / own["median_s"] - 1, 4),
        "inside_band": inside,
        "spread": own["spread"],
        "peaks_equal": own["peaks"] == other["peaks"],
        "peaks": [own["peaks"], other["peaks"]],
        "sources": simulated["report"]["kernel_time_share"],
    }


def summary(rows: list[dict]) -> str:
    errors = [r["error"] for r in rows]
    return (
        f"{len(rows)} jobs: mean {statistics.mean(map(abs, errors)):.1%}, signed "
        f"{statistics.mean(errors):+.1%}, worst {max(errors, key=abs):+.1%}; "
        f"peaks equal on {sum(r['peaks_equal'] for r in rows)}, "
        f"inside the band {sum(bool(r['inside_band']) for r in rows)}"
    )


def main() -> int:
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--gpus", default="1,2", help="jobs on so many")
    parser.add_argument("--only", help="these jobs, comma-separated")
    parser.add_argument("--jobs", type=int, default=2, help="simulated at once")
    parser.add_argument("--predict", action="store_true", help="what has not been measured yet")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args(words[:split])
    extra = words[split + 1 :]
    chosen = [
        part
        for part in (unmeasured if options.predict else real)(options.gpu)
        if str(part["gpus"]) in options.gpus.split(",")
        and (not options.only or part["name"] in options.only.split(","))
    ]
    rows, failed = [], 0
    with ThreadPoolExecutor(options.jobs) as pool:
        answers = pool.map(lambda part: simulate(part, options.gpu, extra), chosen)
        for part, simulated in zip(chosen, answers, strict=True):
            if "failed" in simulated:
                failed += 1
                print(f"{part['name']} FAILED\n{simulated['failed']}", flush=True)
                continue
            if options.predict:
                median_s = simulated["result"]["median_s"]
                print(f"{part['gpus']} {part['name']:24s} {1e3 * median_s:8.2f} ms", flush=True)
                continue
            rows.append(row(part, simulated))
            r = rows[-1]
            print(
                f"{r['set']:11s} {r['gpus']} {r['name']:24s} real {r['real_ms']:8.2f} ms  "
                f"simulated {r['simulated_ms']:8.2f} ms  {r['error']:+6.1%}  "
                f"{'inside' if r['inside_band'] else 'outside'}  "
                f"peaks {'equal' if r['peaks_equal'] else r['peaks']}",
                flush=True,
            )
    for name in ("calibration", "evaluation"):
        mine = [r for r in rows if r["set"] == name]
        if mine:
            print(f"{name}: {summary(mine)}")
    if options.keep:
        with options.keep.open("a") as stream:
            stream.write(json.dumps({"options": extra, "rows": rows}) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
