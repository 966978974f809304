"""Where `[contention]` in the GPU models' files comes from, and how well it describes what was
measured.

Why it exists: constants are chosen on calibration data only, and all other data is shown apart.
Calibration: steps of real jobs (`set` in bench/accuracy/configs.toml), and pairs of one kernel and
one collective, each wholly covered by the other (bench/accuracy/contention.py). Evaluation: steps
of other jobs, and the `overlap` lines of the NCCL sweep. No number is fitted to those, but the form
of `waves` (model/contention.py) was chosen after a look at the products of two of them: 8b-fsdp-8k-ac
and 8b-fsdp_tp-4x2-8k-ac judge matrix products only in part.

    python -m bench.contention.fit [--also TRACE.json.gz]

TRACE: a step of 8b-fsdp-4k on another machine, for calibration.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from bench.accuracy import configs
from bench.contention import steps
from phantora_ns.config import load_cluster, load_gpu
from phantora_ns.protocol import BoundBy, SignatureKind
from phantora_ns.sim._courses import Courses
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.topology import Topology

BENCH = Path(__file__).resolve().parent.parent
DATA = BENCH / "accuracy" / "data"
PAIRS = DATA / "contention.jsonl"
SWEEP = BENCH / "nccl" / "data" / "nccl.jsonl"
FLAT = 340  # permille: one share for every product, for comparison with the tiles
BF16, COMPUTE_32F = 14, 68


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def named_product(name):
    """The cuBLAS signature of a measured piece such as gemm_8192_4096_14336 or gemm8192, None for
    others."""
    sizes = name.removeprefix("gemm").strip("_").split("_")
    if not name.startswith("gemm"):
        return None
    m, n, k = (int(size) for size in (sizes if len(sizes) == 3 else sizes * 3))
    return [0, 0, 0, n, m, k, 1, BF16, BF16, BF16, BF16, COMPUTE_32F, 1, n, k, n]


def predicted_us(name, alone_us, permille):
    product = named_product(name)
    bound_by = steps.class_of(name)
    kind = SignatureKind.GEMM if product else SignatureKind.KERNEL
    return alone_us * (1 + permille(kind, product or [], bound_by) / 1000)


def pairs(permille, shares):
    """Prints measured extra time by class. Collectives that are shorter than a big kernel are left
    out, because they mostly wait for it to end."""
    found, errors, back = defaultdict(list), [], []
    for line in lines(PAIRS):
        if line["collective"].startswith("all_reduce-25"):
            continue
        beside, alone = statistics.median(line["compute_beside_us"]), line["compute_alone_us"]
        found[steps.class_of(line["compute"])].append(beside / alone - 1)
        errors.append(predicted_us(line["compute"], alone, permille) / beside - 1)
        back.append(
            statistics.median(line["collective_beside_us"]) / line["collective_alone_us"] - 1
        )
    print("pairs in bursts: extra time when wholly covered (median, least, most, pairs)")
    rows = {
        **{steps.NAMES[bound_by]: extra for bound_by, extra in sorted(found.items())},
        "collective": back,
    }
    for name, extra in rows.items():
        print(
            f"  {name:10} {statistics.median(extra):6.1%}  {min(extra):6.1%} .. {max(extra):6.1%}  {len(extra):3}   "
            f"file {getattr(shares, name):.0%}"
        )
    print(
        f"  model: mean absolute error {statistics.mean(map(abs, errors)):.1%}, mean {statistics.mean(errors):+.1%}"
    )


def sweep(permille):
    """Prints the sweep's overlap lines, compute only."""
    overlap = [line for line in lines(SWEEP) if line["op"] == "overlap"]
    alone = {
        (line["world"], line["compute"]): line["compute_us"]
        for line in overlap
        if line["comm"] == "none"
    }
    errors = []
    for line in overlap:
        if line["comm"] != "none":
            guess = predicted_us(line["compute"], alone[line["world"], line["compute"]], permille)
            errors.append(guess / line["compute_us"] - 1)
            print(
                f"  {line['world']} GPUs, {line['compute']:10} beside {line['comm']:20} measured "
                f"{line['compute_us']:7.1f} us, "
                f"model {guess:7.1f}  {errors[-1]:+6.1%}"
            )
    print(
        f"  mean absolute error {statistics.mean(map(abs, errors)):.1%}, worst {max(map(abs, errors)):.1%}"
    )


def replay(name, step, gpu):
    """Prints what the model makes of one step's kernels, replayed beside its own collectives."""
    tiled, flat = list(step.judge(steps.shares(gpu))), list(step.judge(steps.shares(gpu, FLAT)))
    if not tiled:
        print(f"  {name}: no launch beside a collective has an equal one alone")
        return
    judged_ns = sum(one.measured_ns for one in tiled)
    print(
        f"  {name}: {step.touched_ns / 1e6:.1f} ms beside collectives, {judged_ns / 1e6:.1f} of "
        "them have equal launches alone"
    )
    for bound_by in (BoundBy.COMPUTE, BoundBy.ATTENTION, BoundBy.MEMORY, None):
        rows = [(a, b) for a, b in zip(tiled, flat) if bound_by is None or a.bound_by == bound_by]
        if not rows:
            continue
        measured, alone, model, plain = (
            sum(values)
            for values in zip(
                *((a.measured_ns, a.alone_ns, a.model_ns, b.model_ns) for a, b in rows)
            )
        )
        wrong = sum(abs(a.model_ns - a.measured_ns) for a, _ in rows) / measured
        wrong_flat = sum(abs(b.model_ns - b.measured_ns) for _, b in rows) / measured
        print(
            f"    {steps.NAMES.get(bound_by, 'all'):10} alone {alone / 1e6:7.2f} ms, measured {measured / 1e6:7.2f} "
            f"({measured / alone - 1:+6.1%}), model {model / 1e6:7.2f} "
            f"({model / measured - 1:+6.1%}, by kernel {wrong:5.1%}); "
            f"one share for products {plain / 1e6:7.2f} ({plain / measured - 1:+6.1%}, {wrong_flat:5.1%})"
        )


def collectives(name, step, alone_ns):
    """Prints how much longer collectives took than the model says they do alone: all of them, and
    the tenth that waited least."""
    for kind, ratios in step.ratios(alone_ns).items():
        tenth = ratios[: max(1, len(ratios) // 10)]
        print(
            f"  {name} {kind:14} {len(ratios):4}: least {ratios[0]:.2f}, first tenth {statistics.mean(tenth):.2f}, "
            f"median {statistics.median(ratios):.2f}"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--also", type=Path)
    options = parser.parse_args()
    gpu, topology = load_gpu("h200"), Topology.build(load_cluster("h200-1x8"))
    shares, permille = gpu.contention, steps.shares(gpu)
    model = CollectiveModel(topology, gpu)
    courses = Courses(model, topology.capacities, FlowSimulator(topology.capacities).group)

    def alone_ns(one):
        plan = model.plan(steps.KINDS[one.kind], one.ranks, one.count_bytes)
        course = courses.of(plan)
        return course.before_ns + max(course.private_ns, course.estimate_ns) + course.after_ns

    found = {"calibration": {}, "evaluation": {}}
    for one in configs.load():
        trace = DATA / "traces" / f"{one.name}.json.xz"
        if one.trace and one.gpus > 1 and trace.is_file():
            found[one.set][one.name] = steps.Step(trace, DATA / "shapes" / f"{one.name}.json.xz")
    if options.also:
        found["calibration"]["another machine"] = steps.Step(
            options.also, DATA / "shapes" / "8b-fsdp-4k.json.xz"
        )
    for which, each in found.items():
        print(f"{which}: kernels of real steps, replayed beside the step's own collectives")
        for name, step in each.items():
            replay(name, step, gpu)
        print(
            f"{which}: large collectives beside compute, over the model's time alone (it contains "
            "the wait for other ranks)"
        )
        for name, step in each.items():
            collectives(name, step, alone_ns)
        if which == "calibration":
            print(f"calibration: {PAIRS.name}")
            pairs(permille, shares)
    print("evaluation: overlap lines of the NCCL sweep")
    sweep(permille)


main()
