"""Where a step's time goes by number of GPUs, and where the simulator's step differs, by trace.

    python -m bench.gpus.decompose DIR [SIMULATED_DIR]

DIR: a visit, plain or packed. SIMULATED_DIR/PART/trace: what `phantora-ns --host-time model
--gpus-per-node 4 --trace ... --trace-steps 4:5 -- python -m bench.gpus.measure OUT --only PART
--steps 2 --no-trace` wrote (`--steps 1` for parts that also run alone).

Why it exists: README.md holds its tables. Equal kernels are matched by their order in the step on
the same GPU. A matched kernel that no collective covers says what the clock does to its class; a
covered one, what contention adds to that. What does not match, and what is sharded by the number
of GPUs, is `sharded`. All numbers are means over the ranks, in ms.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from difflib import SequenceMatcher
from pathlib import Path
from statistics import mean, median

from bench.gpus import visit
from bench.gpus.steps import PAUSES, Kernel, Step, class_of, of_line, of_simulated, waited

MS = 1e6
WORK = ("gemm", "attention", "memory", "other", "sharded")
EQUAL = ("gemm", "attention", "memory", "other")
SAME_LAYERS = {"8b-fsdp-4k": "8b12-fsdp-4k"}  # products of the same sizes, measured on one GPU
NEAR = 25_000_000  # ns over which the clock is taken to be one
COVERED, FREE = 0.95, 0.05  # parts of a kernel during which a collective runs

Steps = dict[str, list[Step]]  # by part, in the order of the ranks


def real_steps(folder: Path) -> Steps:
    """All ranks of a part on one clock."""
    lines = sorted(visit.traces(folder), key=lambda line: line["rank"])
    first = {line["part"]: line["base_ns"] for line in reversed(lines)}
    found: Steps = defaultdict(list)
    for line in lines:
        kernels = of_line(line)
        for kernel in kernels:
            shift = line["base_ns"] - first[line["part"]]
            kernel.begin += shift
            kernel.launch = None if kernel.launch is None else kernel.launch + shift
        found[line["part"]].append(Step(kernels))
    return found


def simulated_steps(folder: Path) -> Steps:
    found = {}
    for part in sorted(path.name for path in folder.iterdir() if path.is_dir()):
        paths = sorted((folder / part / "trace").glob("rank-*.json.gz"))
        if paths:
            found[part] = [Step(of_simulated(path)) for path in paths]
    return found


def medians(folder: Path) -> dict[str, float]:
    """Untraced steps of a part, all copies at once: the mean of the ranks' medians, ms."""
    found = defaultdict(list)
    for row in visit.results(folder):
        if row["row"] == "step" and row["phase"] == "all":
            found[row["part"]].append(median(step[2] for step in row["steps"]) / MS)
    return {part: mean(values) for part, values in found.items()}


def matched(
    one: Step, more: Step
) -> tuple[list[tuple[Kernel, Kernel]], list[Kernel], list[Kernel]]:
    """Pairs of equal kernels, and what either has beside them."""
    names = [[kernel.name for kernel in step.main] for step in (one, more)]
    pairs, used = [], (set(), set())
    for a, b, size in SequenceMatcher(None, *names, autojunk=False).get_matching_blocks():
        for i in range(size):
            if class_of(names[0][a + i]) in EQUAL:
                pairs.append((one.main[a + i], more.main[b + i]))
                used[0].add(a + i)
                used[1].add(b + i)
    rest = [
        [kernel for index, kernel in enumerate(step.main) if index not in seen]
        for step, seen in zip((one, more), used, strict=True)
    ]
    return pairs, *rest


def ratio(pairs: list[tuple[Kernel, Kernel]]) -> float:
    before = sum(a.length for a, _ in pairs)
    return sum(b.length for _, b in pairs) / before if before else 1.0


def by_class(pairs) -> dict[str, list]:
    found = defaultdict(list)
    for pair in pairs:
        found[class_of(pair[0].name)].append(pair)
    return found


def growth(one: Step, more: Step, late) -> dict[str, float]:
    """The difference of two steps of one GPU, line by line."""
    pairs, rest_one, rest_more = matched(one, more)
    found: dict[str, float] = {"step": (more.length - one.length) / MS}
    for label, group in by_class(pairs).items():
        free = ratio([pair for pair in group if pair[1].covered < FREE])
        total = sum(b.length - a.length for a, b in group) / MS
        found[f"clock {label}"] = sum(a.length for a, _ in group) * (free - 1) / MS
        found[f"contention {label}"] = total - found[f"clock {label}"]
        found[f"free x {label}"] = free
        found[f"covered x {label}"] = ratio([pair for pair in group if pair[1].covered > COVERED])
        found[f"covered ms {label}"] = sum(b.length * b.covered for _, b in group) / MS
    found["sharded"] = (sum(k.length for k in rest_more) - sum(k.length for k in rest_one)) / MS
    pauses, before = more.pauses(late), one.pauses()
    for label in PAUSES:
        found[label] = (pauses[label] - before[label]) / MS
    return found


def contents(step: Step, late) -> dict[str, float]:
    """A step's lines: time of each class as it ran, and (simulator) without communication."""
    found: dict[str, float] = defaultdict(float)
    for kernel in step.main:
        label = class_of(kernel.name)
        found[label] += kernel.length / MS
        alone = kernel.length if kernel.alone is None else kernel.alone
        found[f"{label} alone"] += alone / MS
        found[f"{label} covered"] += kernel.length * kernel.covered / MS
    found.update({label: ns / MS for label, ns in step.pauses(late).items()})
    found["step"] = step.length / MS
    found["collectives"] = sum(kernel.length for kernel in step.nccl) / MS
    found["waits"] = late.inside(step.begin, step.end) / MS
    return found


def averaged(rows: list[dict[str, float]]) -> dict[str, float]:
    keys = {key for row in rows for key in row}
    return {key: mean(row.get(key, 0.0) for row in rows) for key in keys}


def table(head: list[str], rows: list[list[str]]) -> None:
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def growths(steps: Steps) -> dict[str, dict[str, float]]:
    found = {}
    for part, more in steps.items():
        shape, gpus = part.split("@")
        one = steps.get(f"{shape}@1")
        if gpus != "1" and one:
            late = waited(more, part)
            found[part] = averaged([growth(*pair) for pair in zip(one, more, late, strict=True)])
    return found


def ms(value: float) -> str:
    return f"{value:+.1f}"


def show_growth(title: str, steps: Steps) -> None:
    print(f"\n{title}")
    found = growths(steps)
    lines = []
    for part, row in found.items():
        clock, contention = (
            sum(row.get(f"{kind} {label}", 0.0) for label in EQUAL)
            for kind in ("clock", "contention")
        )
        cells = [row["step"], clock, contention, row["sharded"]]
        cells += [row["exposed"], row["late"], row["side"] + row["launch"] + row["small"]]
        lines.append([part, *map(ms, cells)])
    table(
        ["step", "N - 1", "clock", "contention", "sharded", "exposed", "late", "other pauses"],
        lines,
    )
    lines = []
    for part, row in found.items():
        cells = [part]
        for label in EQUAL[:3]:
            cells.append(
                f"{row.get(f'free x {label}', 1):.3f}, {row.get(f'covered x {label}', 1):.3f}"
            )
            cells.append(
                f"{row.get(f'clock {label}', 0):+.1f} {row.get(f'contention {label}', 0):+.1f}"
            )
        lines.append(cells)
    table(
        [
            "N / 1: not covered, covered",
            *(x for label in EQUAL[:3] for x in (label, "clock, contention")),
        ],
        lines,
    )


def show_difference(real: Steps, simulated: Steps, untraced: dict[str, float]) -> None:
    print("\nSimulated - real")
    lines = []
    for part in simulated:
        if part not in real:
            continue
        rows = []
        for steps in (real[part], simulated[part]):
            late = waited(steps, part)
            rows.append(averaged([contents(s, w) for s, w in zip(steps, late, strict=True)]))
        a, b = rows
        cells = [b["step"] - untraced[part], a["step"] - untraced[part], b["step"] - a["step"]]
        cells += [b.get(label, 0.0) - a.get(label, 0.0) for label in WORK]
        cells += [b["exposed"] - a["exposed"], b["late"] - a["late"]]
        cells += [sum(b[label] - a[label] for label in ("side", "launch", "small"))]
        text = f"{a['collectives'] - a['waits']:.1f}, {b['collectives'] - b['waits']:.1f}"
        lines.append([part, *map(ms, cells), text])
    head = ["step", "simulated - median", "traced - median", "simulated - traced", *WORK]
    table(
        [*head, "exposed", "late", "other pauses", "collectives less waits: real, simulated"], lines
    )


def products(step: Step) -> list[Kernel]:
    return [kernel for kernel in step.main if class_of(kernel.name) == "gemm"]


def clock_at(moment: int, free: list[tuple[int, int, int]]) -> float:
    """The ratio of products that nothing covers to the same on one GPU, near `moment`."""
    near = [row for row in free if abs(row[0] - moment) < NEAR] or free
    before = sum(row[2] for row in near)
    return sum(row[1] for row in near) / before if before else 1.0


def product_lines(real: Steps, simulated: Steps, part: str) -> list[float] | None:
    """ms of products: on one GPU; clock, contention (real); other times, contention (simulated)."""
    shape = part.split("@")[0]
    one = f"{SAME_LAYERS.get(shape, shape)}@1"
    names = {
        key: [k.name for k in products(simulated[key][0])]
        for key in (part, one)
        if key in simulated
    }
    if len(names) < 2 or one not in real or part == one:
        return None
    rows = []
    for rank, step in enumerate(real[part]):
        times = defaultdict(list)
        for name, kernel in zip(names[one], products(real[one][rank]), strict=True):
            times[name].append(kernel.length)
        base = [round(mean(times[name])) for name in names[part]]
        own = list(zip(products(step), base, strict=True))
        free = [(k.begin, k.length, b) for k, b in own if k.covered < FREE]
        clock = sum(b * (clock_at(k.begin, free) - 1) for k, b in own)
        more = sum(k.length - b for k, b in own)
        here = products(simulated[part][rank])
        alone = sum(k.length if k.alone is None else k.alone for k in here)
        simulated_more = sum(k.length for k in here) - alone
        rows.append((sum(base), clock, more - clock, alone - sum(base), simulated_more))
    return [mean(column) / MS for column in zip(*rows, strict=True)]


def show_products(real: Steps, simulated: Steps) -> None:
    lines = []
    for part in simulated:
        found = product_lines(real, simulated, part) if part in real else None
        if found:
            lines.append([part, f"{found[0]:.1f}", *map(ms, found[1:])])
    head = ["products", "on 1 GPU", "real: clock", "contention", "simulated: alone", "contention"]
    table(head, lines)


def main() -> None:
    folder = Path(sys.argv[1])
    real = real_steps(folder)
    show_growth("Real, N GPUs - 1 GPU", real)
    if len(sys.argv) > 2:
        simulated = simulated_steps(Path(sys.argv[2]))
        show_growth("Simulated, N GPUs - 1 GPU", simulated)
        show_difference(real, simulated, medians(folder))
        show_products(real, simulated)


if __name__ == "__main__":
    main()
