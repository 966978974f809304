"""How far the estimators alone are from real traces.

Usage: `python -m phantora_ns.kernels.evaluation.estimator_errors [--llama ...] TRACE...`.

Why it exists: an estimate without its error is worth little. Each distinct signature of a trace is
one test. Its time is the median of the launches that no work on another stream overlapped. A bit of
a signature's key decides whether it is calibration or held out. The fit (bench/kernels/fit.py) uses
the same split, so no number is judged by the data that it was fitted on. Models fitted to a database
are judged elsewhere, by whole runs (kernels/evaluation/validation.py).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from phantora_ns.config import ConfigError
from phantora_ns.kernels import signature
from phantora_ns.kernels.binary import names
from phantora_ns.kernels.estimators import launch, memory
from phantora_ns.kernels.evaluation.trace_launches import Launch, TraceError, launches
from phantora_ns.kernels.evaluation.trace_signatures import LlamaShapes
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import SignatureKind, Source


@dataclass(frozen=True, slots=True)
class Case:
    """One distinct signature: its measured median, its estimate, its number of launches, and its
    total measured time."""

    family: str
    kind: int
    fields: list
    context: list | None
    measured_ns: float
    launches: int
    held_out: bool
    operator: str
    cold: bool


def family_of(call: Launch) -> str:
    """The name under which a launch's error is reported."""
    if call.kind == SignatureKind.GEMM:
        return "gemm"
    if call.kind == SignatureKind.CUDNN:
        return "convolution" if "convolution" in call.operator else "attention"
    if call.kind == SignatureKind.MEMORY:
        if call.fields[0] == 1:
            return "memset"
        return "device copy" if call.fields[2:] == [2, 2] else "host copy"
    kernel = signature.parse_kernel(call.fields)
    name = names.parse(kernel.name)
    if launch.attention_call(kernel, name, None) is not None:
        return "attention"
    found = memory.traffic(kernel, name)
    if found is not None:
        return found.family
    return memory.family(name) if call.context else "guess"


def is_held_out(call: Launch) -> bool:
    """Whether a signature is held out: a high bit of its key. FNV's lowest bit would be only the
    parity of the bytes."""
    return bool(signature.key(call.kind, call.fields) >> 40 & 1)


def cases(found: Iterable[Launch]) -> list[Case]:
    """The distinct signatures among the launches that ran alone."""
    groups: dict[bytes, list[Launch]] = defaultdict(list)
    for call in found:
        if call.alone:
            identity = [call.fields, call.context, call.cold]
            groups[signature.encode(call.kind, identity)].append(call)
    return [
        Case(
            family_of(g[0]),
            g[0].kind,
            g[0].fields,
            g[0].context,
            statistics.median(o.duration_ns for o in g),
            len(g),
            is_held_out(g[0]),
            g[0].operator,
            g[0].cold,
        )
        for g in groups.values()
    ]


def cold_times(times: KernelTimes) -> KernelTimes:
    """The same models for kernels that find nothing in the cache. bench/kernels/record.py measures
    kernels that way."""
    other = copy.copy(times)
    other.rates = dataclasses.replace(
        times.rates, numbers={**times.rates.numbers, "cache.warm_share": 0.0}
    )
    return other


def report(times: KernelTimes, found: list[Case], worst: int = 0) -> list[str]:
    """Lines of a table: the error by family and of the total time, for calibration and held-out
    signatures."""
    lines = [
        f"{'family':<22}{'set':<13}{'signatures':>11}{'median':>9}{'mean':>8}{'p90':>8}{'time ms':>10}{'of time':>9}"
    ]
    cold = cold_times(times)
    errors: dict[tuple[str, bool], list[tuple[float, float, float, Case]]] = defaultdict(list)
    for case in found:
        estimate = (
            (cold if case.cold else times)
            .estimate(case.kind, case.fields, case.context)
            .duration_ns
        )
        errors[case.family, case.held_out].append(
            (estimate / case.measured_ns - 1, estimate, case.measured_ns, case)
        )

    def line(name: str, which: str, rows: list) -> str:
        relative = sorted(abs(r[0]) for r in rows)
        measured = sum(r[2] * r[3].launches for r in rows)
        estimated = sum(r[1] * r[3].launches for r in rows)
        return (
            f"{name:<22}{which:<13}{len(rows):>11}{statistics.median(relative):>9.1%}{statistics.fmean(relative):>8.1%}"
            f"{relative[int(0.9 * (len(relative) - 1))]:>8.1%}{measured / 1e6:>10.2f}{estimated / measured - 1:>+9.1%}"
        )

    for name in sorted({family for family, _ in errors}):
        for held_out in (False, True):
            if errors.get((name, held_out)):
                lines.append(
                    line(name, "held-out" if held_out else "calibration", errors[name, held_out])
                )
    for held_out in (False, True):
        rows = [row for (_, side), group in errors.items() if side == held_out for row in group]
        if rows:
            lines.append(line("all", "held-out" if held_out else "calibration", rows))
    rows = [row for group in errors.values() for row in group]
    if rows:
        lines.append(line("all", "both", rows))
        lines.append(
            line(
                "all but guesses", "both", [row for row in rows if row[3].family != "guess"] or rows
            )
        )
    for row in sorted(rows, key=lambda r: -abs(r[1] - r[2]) * r[3].launches)[:worst]:
        case = row[3]
        lines.append(
            f"  {row[0]:+7.1%} {row[2] / 1e3:9.1f} us measured, {row[1] / 1e3:9.1f} estimated, x{case.launches} "
            f"[{case.family}] {case.operator} {signature.describe(case.kind, case.fields)[:400]}"
        )
    return lines


def main(arguments: list[str]) -> int:
    """Command line; exit status 1 for a trace or GPU file that cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m phantora_ns.kernels.evaluation.estimator_errors",
        description=__doc__.splitlines()[0],
    )
    parser.add_argument(
        "traces", nargs="+", metavar="TRACE", help="Kineto trace (.json, .json.gz or .json.xz)"
    )
    parser.add_argument("--gpu", default="h200", help="GPU model of the trace (default: h200)")
    parser.add_argument(
        "--llama",
        metavar="DIM,KV_DIM,FFN,VOCABULARY,LAYERS,TOKENS,HEADS",
        help="sizes of the model, for a trace of one training step without recorded shapes",
    )
    parser.add_argument(
        "--worst",
        type=int,
        default=0,
        metavar="N",
        help="also list the N signatures that cost most accuracy",
    )
    options = parser.parse_args(arguments)
    try:
        llama = LlamaShapes(*map(int, options.llama.split(","))) if options.llama else None
    except (ValueError, TypeError):
        parser.error("--llama takes seven integers separated by commas")
    try:
        found = [o for trace in options.traces for o in launches(trace, llama)]
        times = KernelTimes(options.gpu)
    except (TraceError, ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(report(times, cases(found), options.worst)))
    overlapped = sum(o.duration_ns for o in found if not o.alone)
    total = sum(o.duration_ns for o in found)
    guessed = sum(
        o.duration_ns for o in found if times.lookup(o.kind, o.fields, o.context)[1] == Source.GUESS
    )
    print(
        f"compute in the traces {total / 1e6:.2f} ms, of it beside other streams "
        f"{overlapped / 1e6:.2f} ms (not judged), "
        f"guessed {guessed / 1e6:.2f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
