"""What short rows and near neighbours fetch of a sector, held against 1,244 batches of transposes on an H200."""

import json
import lzma
from pathlib import Path
from statistics import median

from phantora_ns.kernels.estimators.memory import SECTOR, WARP, _fetched

MEASURED = Path(__file__).parents[2] / "bench/kernels/batched.jsonl.xz"
SIZES, OPERANDS = {"bf16": 2, "f32": 4}, {"copy": 2, "add": 3}
LARGE = 1 << 24  # numbers from which the start of a kernel does not count
RATE = 21.4 * 132 * 1.98  # bytes per ns: cache.sectors of h200.toml x multiprocessors x GHz


def test_batches_of_transposes_take_what_they_fetch():
    """By the share of a sector they are within a tenth in the median; by whole sectors they are not."""
    errors: dict[str, list[float]] = {"share": [], "whole": []}
    for line in lzma.decompress(MEASURED.read_bytes()).decode().splitlines():
        case = json.loads(line)
        size, rows, columns = SIZES[case["type"]], case["rows"], case["columns"]
        numbers, stride = case["batch"] * rows * columns, columns * size
        if numbers < LARGE or rows < WARP or stride < SECTOR:
            continue
        for law, share in (("share", _fetched(stride, rows)), ("whole", 1.0)):
            moved = OPERANDS[case["op"]] * size + SECTOR * share
            errors[law].append(abs(moved * numbers / RATE / (case["us"] * 1e3) - 1))
    assert len(errors["share"]) > 400
    assert median(errors["share"]) < 0.10 < median(errors["whole"])
