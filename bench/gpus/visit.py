"""Reads a visit's folder, plain or packed, and packs one for the repository.

    python -m bench.gpus.visit DIR PACKED_DIR

Why it exists: a visit is 7 MB, of which 1.3 MB say all that is read. Packed, a sample that repeats
its GPU's clock and energy counter is left out, and of a trace's rows the begins and launches are
differences (launches rounded to microseconds), column by column. Rule: readers see the same times,
clocks and energies in both forms, but for the rounding; of temperatures fewer.
"""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

# README.md says why each part is in its set
EVALUATION = {
    *(f"8b12-fsdp-4k@{n}" for n in (1, 2, 4)),
    *(f"1b-ddp-4k@{n}" for n in (1, 2, 4)),
    "8b-fsdp-4k@4",
    "8b12-fsdp_tp2-4k@4",
    "13b10-tp-4k@4",
    *(f"1b-fsdp-16k-ac@{n}" for n in (1, 2, 4)),
}
US = 1000
CLOCK, ENERGY = 2, 5  # columns of samples.csv


def text(folder: Path, name: str) -> str:
    """The file's text, "" if it is in no form there."""
    for suffix, read in (("", Path.read_bytes), (".xz", lzma.open), (".gz", gzip.open)):
        path = folder / (name + suffix)
        if path.exists():
            content = read(path)
            return (content if isinstance(content, bytes) else content.read()).decode()
    return ""


def results(folder: Path) -> list[dict]:
    return [json.loads(line) for line in text(folder, "results.jsonl").splitlines()]


def traces(folder: Path) -> Iterator[dict]:
    """traces.py's lines of all ranks: `rows` of [name, stream, begin, duration, launch]."""
    packed = text(folder, "traces.jsonl").splitlines()
    for line in packed or (
        line
        for path in sorted(folder.glob("trace-rank*.jsonl.gz"))
        for line in gzip.decompress(path.read_bytes()).decode().splitlines()
    ):
        trace = json.loads(line)
        if "columns" in trace:
            name, stream, begin, duration, launch = trace.pop("columns")
            launched = [us * US for us in accumulate(launch)]
            columns = name, stream, accumulate(begin), duration, launched
            trace["rows"] = [list(row) for row in zip(*columns, strict=True)]
        yield trace


def packed_trace(trace: dict) -> dict:
    name, stream, begin, duration, launch = map(list, zip(*trace["rows"], strict=True))
    launched = [0 if ns is None else round(ns / US) for ns in launch]
    begin = [b - a for a, b in pairwise([0, *begin])]
    launched = [b - a for a, b in pairwise([0, *launched])]
    return {
        **{key: value for key, value in trace.items() if key not in ("rows", "events")},
        "columns": [name, stream, begin, duration, launched],
    }


def packed_samples(lines: list[str]) -> Iterator[str]:
    last: dict[str, tuple] = {}
    for line in lines:
        cells = line.split(",")
        if line.startswith("#"):
            yield line
        elif len(cells) > ENERGY and last.get(cells[1]) != (cells[CLOCK], cells[ENERGY]):
            last[cells[1]] = cells[CLOCK], cells[ENERGY]
            yield line


def pack(folder: Path, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    contents = {
        "results.jsonl": text(folder, "results.jsonl").splitlines(),
        "samples.csv": packed_samples(text(folder, "samples.csv").splitlines()),
        "traces.jsonl": (
            json.dumps(packed_trace(trace), separators=(",", ":")) for trace in traces(folder)
        ),
    }
    for name, lines in contents.items():
        content = "".join(line + "\n" for line in lines).encode()
        (to / f"{name}.xz").write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
