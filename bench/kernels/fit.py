"""Fits the [efficiency] tables of a GPU's data file to traces, and prints them.

Why it exists: the numbers in phantora_ns/data/gpus/*.toml must be reproducible. Each group of
numbers is fitted on its own by coordinate descent to the least mean absolute logarithm of estimate
over measurement; only the signatures that phantora_ns/kernels/evaluation/estimator_errors.py calls
calibration are used.

    python -m bench.kernels.fit [--gpu h200] [--llama ...] [--only GROUP,...] TRACE...
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys

from phantora_ns.kernels import signature
from phantora_ns.kernels.estimators import gemm, memory
from phantora_ns.kernels.evaluation import estimator_errors
from phantora_ns.kernels.evaluation.trace_launches import launches
from phantora_ns.kernels.evaluation.trace_signatures import LlamaShapes
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.kernels.rates import Family
from phantora_ns.protocol import SignatureKind

ROUNDS = 40
# Set by hand: these traces hold too little of it, or cannot tell it apart.
FIXED = {
    "gemm.sustained",
    "gemm.smallest_k",
    "gemm.other_types",
    "attention.flash_forward_base",
    "attention.flash_backward_base",
    "copy.pinned",
    "copy.peer",
    "copy.staged_above",
}
FIXED_FAMILIES = {
    "other",
    "foreach",
    "memset",
    "optimizer",
    "chunk_concatenate",
    "split_copy",
    "concatenate",
}
# Above this size a GEMM that is repeated alone runs into the power limit; one in a step does not.
THROTTLED_FLOP = 1.2e11
STEP_WEIGHT = 4.0  # a signature from a real step counts as much as this many from single operators


def weighted(found: list[estimator_errors.Case]) -> list[tuple[estimator_errors.Case, float]]:
    """The calibration cases with their weights."""
    result = []
    for case in found:
        if case.held_out:
            continue
        if (
            case.family in ("foreach", "optimizer")
            and case.fields[1] < memory.TENSOR_LISTS[0].blocks
        ):
            # without the lists' sizes, which traces lack, only full launches tell how much they
            # move
            continue
        if (
            case.cold
            and case.kind == SignatureKind.GEMM
            and gemm.flop(signature.Gemm(*case.fields)) > THROTTLED_FLOP
        ):
            continue
        result.append((case, 1.0 if case.cold else STEP_WEIGHT))
    return result


def loss(
    times: KernelTimes, cold: KernelTimes, found: list[tuple[estimator_errors.Case, float]]
) -> float:
    """Mean absolute logarithm of estimate over measurement, weighted."""
    total = sum(weight for _, weight in found)
    return (
        sum(
            weight
            * abs(
                math.log(
                    (cold if case.cold else times)
                    .estimate(case.kind, case.fields, case.context)
                    .duration_ns
                    / case.measured_ns
                )
            )
            for case, weight in found
        )
        / total
    )


def descend(values: dict[str, float], score) -> dict[str, float]:
    """Coordinate descent on positive numbers by factors that shrink when they do not help."""
    steps = dict.fromkeys(values, 1.25)
    best = score(values)
    for _ in range(ROUNDS):
        for name in values:
            for factor in (steps[name], 1 / steps[name]):
                trial = {**values, name: values[name] * factor}
                result = score(trial)
                if result < best - 1e-7:
                    values, best = trial, result
                    break
            else:
                steps[name] = 1 + (steps[name] - 1) * 0.6
    return values


def fit(
    times: KernelTimes,
    group: str,
    names: list[str],
    found: list[tuple[estimator_errors.Case, float]],
) -> None:
    """Fits the numbers called `names` and installs them in `times`."""

    def install(values: dict[str, float]) -> KernelTimes:
        times.rates = dataclasses.replace(times.rates, numbers={**times.rates.numbers, **values})
        return estimator_errors.cold_times(times)

    start = {name: times.rates.numbers[name] for name in names}
    before = loss(times, estimator_errors.cold_times(times), found)
    best = descend(start, lambda values: loss(times, install(values), found))
    after = loss(times, install(best), found)
    print(
        f"# {group}: {len(found)} signatures, mean error {math.expm1(before):.1%} -> {math.expm1(after):.1%}",
        file=sys.stderr,
    )


def fit_family(
    times: KernelTimes, family: str, found: list[tuple[estimator_errors.Case, float]]
) -> None:
    """Fits one family of memory-bound kernels: base, bandwidth, elements."""
    entry = times.rates.families[family]
    start = {"base": entry.base_ns, "bandwidth": entry.bandwidth}
    if entry.elements_per_cycle:
        start["elements"] = entry.elements_per_cycle
    if entry.block_elements_per_cycle:
        start["block_elements"] = entry.block_elements_per_cycle

    def install(values: dict[str, float]) -> KernelTimes:
        changed = Family(
            values["base"],
            min(values["bandwidth"], 1.0),
            values.get("elements", 0.0),
            values.get("block_elements", 0.0),
        )
        times.rates = dataclasses.replace(
            times.rates, families={**times.rates.families, family: changed}
        )
        return estimator_errors.cold_times(times)

    before = loss(times, estimator_errors.cold_times(times), found)
    best = descend(start, lambda values: loss(times, install(values), found))
    after = loss(times, install(best), found)
    print(
        f"# {family}: {len(found)} signatures, mean error {math.expm1(before):.1%} -> {math.expm1(after):.1%}",
        file=sys.stderr,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--llama")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    llama = LlamaShapes(*map(int, options.llama.split(","))) if options.llama else None
    times = KernelTimes(options.gpu)
    found = weighted(
        estimator_errors.cases(o for trace in options.traces for o in launches(trace, llama))
    )
    only = set(options.only.split(",")) - {""}
    for group, family in (
        ("gemm", "gemm"),
        ("attention", "attention"),
        ("convolution", "convolution"),
        ("copy", "host copy"),
    ):
        names = [n for n in times.rates.numbers if n.startswith(group + ".") and n not in FIXED]
        chosen = [c for c in found if c[0].family == family]
        if chosen and (not only or group in only):
            fit(times, group, names, chosen)
    aliases = {"device_copy": "device copy"}
    for family in times.rates.families:
        chosen = [c for c in found if c[0].family == aliases.get(family, family)]
        if chosen and family not in FIXED_FAMILIES and (not only or family in only):
            fit_family(times, family, chosen)
    sections: dict[str, list[str]] = {}
    for name, value in times.rates.numbers.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, []).append(f"{key} = {value:.6g}")
    for section, lines in sections.items():
        print(f"[efficiency.{section}]", *lines, "", sep="\n")
    print("[efficiency.memory]")
    for name, entry in times.rates.families.items():
        elements = (
            f", elements = {entry.elements_per_cycle:.3g}" if entry.elements_per_cycle else ""
        )
        if entry.block_elements_per_cycle:
            elements += f", block_elements = {entry.block_elements_per_cycle:.3g}"
        print(
            f'{name} = {{base = "{entry.base_ns / 1000:.3g} us", bandwidth = "{entry.bandwidth:.3%}"{elements}}}'
        )


if __name__ == "__main__":
    main()
