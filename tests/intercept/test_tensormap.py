"""Why it exists: cuda.h documents which tensor maps exist; a job that asks for another must be told so, as the driver would."""
import json
import os
import subprocess
import sys

import pytest

INVALID, UNSUPPORTED = 1, 801
BFLOAT16, FLOAT32, INT32 = 9, 7, 3
PLAIN = {"type": BFLOAT16, "address": 1 << 40, "size": [4096, 8192], "stride": [8192], "box": [64, 128], "steps": [1, 1],
         "interleave": 0, "swizzle": 3, "promotion": 2, "fill": 0, "misplaced": 0}
CUBE = {"size": [64] * 3, "stride": [128] * 2, "box": [16] * 3, "steps": [1] * 3}

# What is not plain, and the answer by the documentation of cuTensorMapEncodeTiled.
CASES = {
    "plain": ({}, 0),
    "no address yet": ({"address": 0}, 0),
    "five dimensions": ({"size": [64] * 5, "stride": [128] * 4, "box": [64, 1, 1, 1, 1], "steps": [1] * 5}, 0),
    "a box of 256": ({"box": [64, 256]}, 0),
    "the largest size": ({"size": [1 << 32, 1], "stride": [1 << 34]}, 0),
    "NaN for floats": ({"fill": 1}, 0),
    "interleaved in 32 bytes": ({**CUBE, "interleave": 2, "swizzle": 1}, 0),
    "address not aligned": ({"address": (1 << 40) + 8}, INVALID),
    "map not aligned": ({"misplaced": 32}, INVALID),
    "six dimensions": ({"size": [64] * 6, "stride": [128] * 5, "box": [64] + [1] * 5, "steps": [1] * 6}, INVALID),
    "no dimension": ({"size": [], "stride": [], "box": [64], "steps": [1]}, INVALID),
    "an empty dimension": ({"size": [4096, 0]}, INVALID),
    "a size too large": ({"size": [(1 << 32) + 1, 1]}, INVALID),
    "stride not aligned": ({"stride": [8200]}, INVALID),
    "stride too large": ({"stride": [1 << 40]}, INVALID),
    "a box of 257": ({"box": [64, 257]}, INVALID),
    "an empty box": ({"box": [64, 0]}, INVALID),
    "a row of 24 bytes": ({"box": [12, 128]}, INVALID),
    "a row wider than the swizzle": ({"box": [128, 128]}, INVALID),
    "a step of 9": ({"steps": [1, 9]}, INVALID),
    "NaN for integers": ({"type": INT32, "box": [32, 128], "fill": 1}, INVALID),
    "interleaved in two dimensions": ({"interleave": 1, "swizzle": 0}, INVALID),
    "interleaved in 32 bytes, other swizzle": ({**CUBE, "interleave": 2, "swizzle": 2}, INVALID),
    "packed four bits": ({"type": 13}, UNSUPPORTED),
    "a swizzle of newer GPUs": ({"swizzle": 4}, UNSUPPORTED),
}

ASK = """
import ctypes, json, sys
library = ctypes.CDLL(None)  # preloaded
room = ctypes.create_string_buffer(512)
start = (ctypes.addressof(room) + 127) // 128 * 128
def array(kind, values):
    return (kind * max(len(values), 1))(*values)
answers = {}
for name, c in json.load(sys.stdin).items():
    rank = len(c["size"])
    answers[name] = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(start + c["misplaced"]), c["type"], rank, ctypes.c_void_p(c["address"]),
        array(ctypes.c_uint64, c["size"]), array(ctypes.c_uint64, c["stride"]),
        array(ctypes.c_uint32, c["box"]), array(ctypes.c_uint32, c["steps"]),
        c["interleave"], c["swizzle"], c["promotion"], c["fill"])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def ask(built_library):
    """Runs a script like ASK on cases, in a process with the interceptor preloaded; returns the object that it prints."""

    def run(script, cases):
        done = subprocess.run([sys.executable, "-c", script], input=json.dumps(cases), capture_output=True, text=True,
                              env={**os.environ, "LD_PRELOAD": str(built_library)})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def answers(ask):
    return ask(ASK, {name: {**PLAIN, **changes} for name, (changes, _) in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_what_the_documentation_allows(answers, name):
    assert answers[name] == CASES[name][1]


def test_an_address_can_be_replaced_in_what_was_encoded_alone(ask):
    script = ASK.replace("print(json.dumps(answers))", "") + """
replace = lambda address: library.cuTensorMapReplaceAddress(ctypes.c_void_p(start), ctypes.c_void_p(address))
before = [replace(1 << 41), replace((1 << 41) + 8)]
ctypes.memset(start, 0, 128)
print(json.dumps([*before, replace(1 << 41)]))
"""
    assert ask(script, {"plain": PLAIN}) == [0, INVALID, INVALID]


def test_the_map_fits_its_128_bytes(ask):
    """Bytes behind the map stay as they were."""
    script = ASK.replace("answers = {}", "answers = {}\nctypes.memset(start + 128, 0x5A, 64)").replace(
        "print(json.dumps(answers))", "print(json.dumps(ctypes.string_at(start + 128, 64).hex()))")
    assert ask(script, {"five": {**PLAIN, **CASES["five dimensions"][0]}}) == "5a" * 64
