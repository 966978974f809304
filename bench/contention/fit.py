"""How well the shares of sim/contention.py describe what was measured: fitted on one set, shown on two others.

Why it exists: `[contention]` in the GPU models' files is four numbers; this prints where they come from and what they miss.
Calibration: pairs of one kernel and one collective, each wholly covered by the other (bench/accuracy/contention.py).
Evaluation, fitted to nothing here: the `overlap` lines of the NCCL sweep, and a profiled step of a real 8-GPU FSDP job, where a
launch that a collective covers wholly is compared with launches of the same kernel and grid that none touches.

    python bench/contention/fit.py
"""
import gzip
import json
import statistics
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path

from phantora_ns.config import load_gpu
from phantora_ns.sim.contention import Contention

BENCH = Path(__file__).resolve().parent.parent
CALIBRATION = BENCH / "accuracy" / "data" / "contention.jsonl"
SWEEP = BENCH / "nccl" / "data" / "nccl.jsonl"
TRACE = BENCH / "accuracy" / "data" / "traces" / "8b-fsdp-4k.json.gz"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def class_of(name):
    """The class of a kernel or of a measured piece of compute, as sim/contention.py names it."""
    name = name.lower()
    if any(word in name for word in ("sdpa", "flash", "attention")):
        return "attention"
    return "gemm" if any(word in name for word in ("gemm", "nvjet", "cutlass")) else "memory"


def calibrate():
    """Median extra share by class. Collectives shorter than a big kernel mostly wait for it to leave the GPU: left out."""
    found = defaultdict(list)
    for line in lines(CALIBRATION):
        if line["collective"].startswith("all_reduce-25"):
            continue
        found[class_of(line["compute"])].append(statistics.median(line["compute_beside_us"]) / line["compute_alone_us"] - 1)
        found["collective"].append(statistics.median(line["collective_beside_us"]) / line["collective_alone_us"] - 1)
    return {name: (statistics.median(extra), min(extra), max(extra), len(extra)) for name, extra in found.items()}


def sweep(shares):
    """(what, measured us, predicted us) of the sweep's overlap lines."""
    overlap = [line for line in lines(SWEEP) if line["op"] == "overlap"]
    alone = {(line["world"], line["compute"]): line["compute_us"] for line in overlap if line["comm"] == "none"}
    for line in overlap:
        if line["comm"] != "none":
            own = alone[line["world"], line["compute"]]
            share = getattr(shares, class_of(line["compute"]))
            yield f"{line['world']} GPUs, {line['compute']} beside {line['comm']}", line["compute_us"], own * (1 + share)


def spans(events):
    """Disjoint (begin, end) of the union of events."""
    merged = []
    for begin, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def trace(path):
    """By class: (covered us measured, the same launches' us alone, launches)."""
    events = json.loads(gzip.open(path).read())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel" and e.get("ph") == "X"]
    communication = spans(e for e in kernels if "nccl" in e["name"].lower())
    begins = [begin for begin, _ in communication]
    alone, covered = defaultdict(list), defaultdict(list)
    for kernel in kernels:
        if "nccl" in kernel["name"].lower():
            continue
        begin, end = kernel["ts"], kernel["ts"] + kernel["dur"]
        at = bisect_left(begins, begin)
        before = communication[at - 1] if at else (0, 0)
        after = communication[at] if at < len(communication) else (float("inf"), 0)
        key = kernel["name"], tuple(kernel["args"].get("grid", ()))
        if before[1] >= end:
            covered[key].append(kernel["dur"])
        elif before[1] <= begin and after[0] >= end:
            alone[key].append(kernel["dur"])
    totals = defaultdict(lambda: [0.0, 0.0, 0])
    for key, durations in covered.items():
        # One kernel and grid may serve products of several shapes: only where all launches alone agree is there a comparison.
        others = alone.get(key, [])
        if len(others) >= 3 and max(others) < 1.15 * min(others):
            total = totals[class_of(key[0])]
            total[0] += sum(durations)
            total[1] += statistics.median(others) * len(durations)
            total[2] += len(durations)
    return totals


def main():
    shares = Contention.of(load_gpu("h200"))
    print("calibration: extra time when wholly covered (median, least, most, pairs), and what the model's file says")
    for name, (median, least, most, pairs) in sorted(calibrate().items()):
        print(f"  {name:11} {median:6.1%}  {least:6.1%} .. {most:6.1%}  {pairs:3}   file {getattr(shares, name):5.0%}")
    print("evaluation: overlap lines of the NCCL sweep, compute us")
    errors = []
    for what, measured, predicted in sweep(shares):
        errors.append(predicted / measured - 1)
        print(f"  {what:58} measured {measured:8.1f}  predicted {predicted:8.1f}  {errors[-1]:+6.1%}")
    print(f"  mean absolute error {statistics.mean(map(abs, errors)):.1%}, worst {max(map(abs, errors)):.1%}")
    print("evaluation: launches of a real 8-GPU FSDP step that a collective covers wholly")
    for name, (measured, without, launches) in sorted(trace(TRACE).items()):
        predicted = without * (1 + getattr(shares, name))
        print(f"  {name:10} {launches:5} launches: measured {measured:7.0f} us, alone {without:7.0f}, "
              f"predicted {predicted:7.0f}  {predicted / measured - 1:+6.1%}")


main()
