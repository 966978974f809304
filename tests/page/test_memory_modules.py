"""What held a peak, by module: sizes known by arithmetic, parts that add up to the byte, and a job that is
not changed by the question."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from phantora_ns.page.memory import MOST_MODULES, held_shown
from phantora_ns.protocol import Holder
from phantora_ns.report.held_part import by_kind, by_layer, held_part
from phantora_ns.startup._phantora_modules import Modules

JOB = Path(__file__).parent / "jobs" / "model.py"
MIB = 2**20
INPUT, INNER, WEIGHT = 32 * MIB, 128 * MIB, 16 * MIB
"""Of the job, in single precision: 8,192 rows of 1,024 and of 4,096, and a matrix between the two."""
REAL = {"wall_s", "hub_cpu_ns", "messages", "rollbacks"}


def watched(phantora, tmp_path, *command, options=("--memory-modules",)):
    file = tmp_path / "report.json"
    done = phantora(
        "--quiet",
        "--host-time",
        "model",
        "--warm-start",
        "auto",
        *options,
        "--report",
        file,
        *command,
    )
    assert done.returncode == 0, done.stderr
    assert "--memory-modules" not in done.stderr  # a failure that it survived
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def layers(phantora, tmp_path_factory):
    command = ["--gpus-per-node", 1, "--", sys.executable, JOB]
    return watched(phantora, tmp_path_factory.mktemp("layers"), *command)


@pytest.mark.slow
def test_two_layers_hold_what_arithmetic_says(layers):
    """The backward of relu is where most is needed: its input, its result, and the gradient it takes."""
    held = layers["memory_held"]
    known = {(kind, module): size for kind, module, size in held["held"]}
    small = known.pop(("other", "aten::sum")) + known.pop(("other", "aten::ones_like"))
    assert small == 1024  # the loss and its gradient, each in the least block
    assert known == {
        ("parameters", "first"): WEIGHT,
        ("parameters", "second"): WEIGHT,
        ("gradients", "second"): WEIGHT,
        ("optimizer states", "first"): 2 * WEIGHT,
        ("optimizer states", "second"): 2 * WEIGHT,
        ("kept since an earlier step", "aten::zeros"): INPUT,
        ("activations", "relu"): INNER,
        ("activations", "second"): INPUT,
        ("backward", "second"): INNER,
        ("backward", "relu"): INNER,
    }
    (rank,) = layers["ranks"]
    assert held["peak_bytes"] == rank["peak_allocated_bytes"] == small + sum(known.values())


@pytest.mark.slow
def test_the_question_changes_nothing_that_is_simulated(phantora, tmp_path, layers):
    command = ["--gpus-per-node", 1, "--", sys.executable, JOB]
    without = watched(phantora, tmp_path, *command, options=())
    assert without.pop("memory_held") is None
    expected = {key: layers[key] for key in without}
    for report in (without, expected):
        for key in REAL:
            del report[key]
        report["ranks"] = [rank | {"messages": None} for rank in report["ranks"]]
    assert without == expected


@pytest.mark.slow
def test_fsdp_and_recomputed_activations(phantora, tmp_path):
    """Two ranks hold half of each weight; gathered weights and recomputed activations say so."""
    report = watched(phantora, tmp_path, "torchrun", "--nproc-per-node", 2, JOB, "--fsdp")
    held = report["memory_held"]
    rows = {(kind, module): size for kind, module, size in held["held"]}
    assert held["peak_bytes"] == max(rank["peak_allocated_bytes"] for rank in report["ranks"])
    assert sum(rows.values()) == held["peak_bytes"]
    for block in range(3):
        for layer in ("first", "second"):
            assert rows["parameters", f"blocks.{block}.{layer}"] == WEIGHT // 2
            assert rows["optimizer states", f"blocks.{block}.{layer}"] == WEIGHT
    recomputed = {
        name: size for (kind, name), size in rows.items() if kind.startswith("recomputed")
    }
    assert list(recomputed.values()) == [INNER] and next(iter(recomputed)).endswith(".relu")
    gathered = {name: size for (kind, name), size in rows.items() if kind == "FSDP"}
    assert gathered and set(gathered) <= {f"blocks.{block}" for block in range(3)}
    assert all(size % (2 * WEIGHT) == 0 for size in gathered.values())


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_in_a_compiled_model_what_was_compiled_is_named(phantora, tmp_path):
    command = ["--gpus-per-node", 1, "--", sys.executable, JOB, "--compile"]
    held = watched(phantora, tmp_path, *command)["memory_held"]
    modules = {module for kind, module, _ in held["held"] if kind == "activations"}
    assert modules == {"Block"}
    assert sum(size for _, _, size in held["held"]) == held["peak_bytes"]


PLAY = """
import ctypes, random, sys
library = ctypes.CDLL(None)
report = getattr(library, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")
report.restype, size = None, ctypes.c_size_t
report.argtypes = ctypes.c_void_p, ctypes.c_int64, size, size, ctypes.c_uint16
held, name = library.phantora_memory_held, library.phantora_memory_name
held.restype = ctypes.c_int64
ask = ctypes.CFUNCTYPE(ctypes.c_uint32)(lambda: 0)
library.phantora_memory_watch(ask, None)
random.seed(int(sys.argv[1]))
CUDA, total, live, best = 1, 0, {}, (0, {})
def change(address, bytes):
    global total
    total += bytes
    report(address, bytes, total, total, CUDA)
for turn in range(3000):
    if live and random.random() < (0.6 if turn % 500 > 250 else 0.4):
        address = random.choice(list(live))
        change(address, -live.pop(address)[0])
        continue
    address = random.choice([one for one in range(512, 512 * 4000, 512) if one not in live])
    kind, module = random.randrange(10), f"module {random.randrange(40)}"
    before = library.phantora_memory_place(kind, name(module.encode()))
    bytes = 512 * random.randrange(1, 100)
    live[address] = bytes, kind, module
    change(address, bytes)
    library.phantora_memory_back(before)
    if total > best[0]:
        best = total, dict(live)
class Held(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint64), ("kind", ctypes.c_uint32), ("name", ctypes.c_uint32)]
peak, rows = ctypes.c_uint64(), (Held * 10000)()
count = held(0, ctypes.byref(peak), rows, size(10000))
library.phantora_memory_name_of.restype = ctypes.c_char_p
found = [[row.bytes, row.kind, library.phantora_memory_name_of(row.name).decode()] for row in rows[:max(0, count)]]
assert peak.value == best[0] == sum(row[0] for row in found)
assert sorted(found) == sorted(map(list, best[1].values()))
change(7, 512), change(7, 512)
assert held(0, ctypes.byref(peak), rows, size(10000)) == -1  # one block twice: nothing is said
"""


@pytest.mark.parametrize("seed", range(5))
def test_the_blocks_of_a_peak_are_those_that_were_live(built_library, seed):
    """Against a copy of all live blocks at each new peak."""
    done = subprocess.run(
        [sys.executable, "-c", PLAY, str(seed)],
        env={**os.environ, "LD_PRELOAD": str(built_library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_rank_with_the_highest_peak_is_told(tmp_path):
    (tmp_path / "memory").mkdir()
    clients = [{"rank": rank, "shm": f"0-{rank + 10}-abc"} for rank in range(3)]
    for rank, peak in ((0, 5), (1, 9)):
        data = {"device": 0, "peak_bytes": peak, "held": [[Holder.FORWARD, "a", peak]]}
        (tmp_path / "memory" / f"0-{rank + 10}.json").write_text(json.dumps(data))
    assert held_part(tmp_path, clients) == {
        "rank": 1,
        "peak_bytes": 9,
        "held": [["activations", "a", 9]],
    }
    assert held_part(tmp_path / "memory", clients) is None
    (tmp_path / "unseen" / "memory").mkdir(parents=True)
    assert held_part(tmp_path / "unseen", clients) == {
        "rank": None,
        "peak_bytes": None,
        "held": None,
    }


class Played:
    """The interceptor for one device, whose peak gets another block whenever it is looked at."""

    def __init__(self, grows):
        self.blocks, self.grows, self.looks = [(7, Holder.FORWARD, 0)], grows, 0
        for name in ("name", "name_of", "own"):
            setattr(self, f"phantora_memory_{name}", lambda *_: b"a")
        self.phantora_memory_held = lambda *given: self.held(*given)

    def held(self, device, peak, rows, room):
        if device:
            return 0
        self.looks += 1
        peak._obj.value = sum(block[0] for block in self.blocks)
        for at, block in enumerate(self.blocks[:room]):
            rows[at].bytes, rows[at].kind, rows[at].name = block
        found = len(self.blocks)
        if self.grows:
            self.grows -= 1
            self.blocks.append((5, Holder.FORWARD, 0))
        return found


@pytest.mark.parametrize("grows, looks, peak", [(0, 2, 7), (1, 3, 12), (2, 4, 17)])
def test_what_is_written_adds_up_while_other_threads_allocate(tmp_path, grows, looks, peak):
    """And blocks are counted once, then read."""
    played = Played(grows)
    modules = Modules(played, str(tmp_path))
    modules.write()
    (file,) = tmp_path.iterdir()
    written = json.loads(file.read_text())
    assert written["peak_bytes"] == sum(row[2] for row in written["held"]) == peak
    assert played.looks == looks


@pytest.mark.parametrize("seed", range(3))
def test_what_is_shown_adds_up(seed):
    random.seed(seed)
    held = [
        [
            random.choice(Holder.LABELS),
            f"layers.{random.randrange(9)}.{part}",
            random.randrange(1, 99),
        ]
        for part in "abcdefg"
        for _ in range(20)
    ]
    total = sum(size for _, _, size in held)
    assert sum(size for _, size in by_kind(held)) == total
    assert sum(row.bytes for row in by_layer(held)) == total
    found = held_shown({"held": held})
    assert sum(row[3] for row in found["layers"]) == total
    assert len(found["layers"]) == MOST_MODULES + 1


def test_layers_that_repeat_are_one_row():
    held = [["activations", f"layers.{n}.mlp", n] for n in range(1, 4)] + [
        ["activations", "head", 1]
    ]
    assert by_layer(held) == [("activations", "layers.*.mlp", 3, 6), ("activations", "head", 1, 1)]
    assert by_layer([["activations", "layers.7.conv1x1", 2]])[0].module == "layers.7.conv1x1"


def test_unknown_is_not_shown():
    assert held_shown(None) is None and held_shown({"held": None}) is None
