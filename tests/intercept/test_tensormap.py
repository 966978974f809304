"""Why it exists: a kernel that copies by TMA is launched only if its tensor's descriptor could be
made."""

import ctypes
import json
import sys

import pytest

VALID = {
    "align": 0,
    "type": 6,
    "rank": 3,
    "address": 0x10000,
    "sizes": [64, 64, 64, 1, 1],
    "strides": [128, 8192, 1 << 20, 1 << 20],
    "box": [16, 8, 4, 1, 1],
    "steps": [1, 1, 1, 1, 1],
    "interleave": 0,
    "swizzle": 0,
    "l2": 0,
    "fill": 0,
}


def at(field, index, value):
    """The valid call's array with one element changed."""
    return {field: [value if i == index else old for i, old in enumerate(VALID[field])]}


# From the conditions in CUDA 13's cuda.h; each is a valid call but for what is named.
ACCEPTED = [
    {},
    {"address": 0},
    {"address": 16},
    *({"type": n} for n in range(1, 13)),
    {"type": 0, "box": [16, 1, 1, 1, 1]},
    *({"rank": n} for n in (1, 2, 4, 5)),
    at("sizes", 2, 1),
    at("sizes", 2, 1 << 32),
    at("strides", 1, 1 << 39),
    at("box", 0, 8),
    at("box", 0, 256),
    at("box", 1, 256),
    at("steps", 0, 0),
    at("steps", 0, 9),
    at("steps", 1, 8),
    {"interleave": 1},
    {"interleave": 1, "box": [3, 8, 4, 1, 1]},
    {"interleave": 2, "swizzle": 1},
    *(
        {"swizzle": mode, "box": [span // 2, 8, 4, 1, 1]}
        for mode, span in enumerate((32, 64, 128, 128, 128, 128), 1)
    ),
    {"l2": 3},
    {"fill": 1},
    {"type": 9, "fill": 1},
]
REFUSED = [
    {"align": 16},
    {"align": 32},
    {"address": 8},
    {"type": -1},
    {"type": 16},
    {"rank": 0},
    {"rank": 6},
    at("sizes", 0, 0),
    at("sizes", 2, (1 << 32) + 1),
    at("strides", 0, 8),
    at("strides", 1, 40),
    at("strides", 1, 1 << 40),
    at("box", 0, 0),
    at("box", 0, 12),
    at("box", 0, 257),
    at("box", 1, 0),
    at("box", 1, 257),
    at("steps", 1, 0),
    at("steps", 1, 9),
    {"interleave": -1},
    {"interleave": 3},
    {"interleave": 1, "rank": 2},
    {"interleave": 1, **at("steps", 0, 0)},
    {"interleave": 2, "swizzle": 2},
    {"interleave": 2, "swizzle": 1, "address": 16},
    {"interleave": 2, "swizzle": 1, **at("strides", 0, 144)},
    *(
        {"swizzle": mode, "box": [span // 2 + 8, 8, 4, 1, 1]}
        for mode, span in enumerate((32, 64, 128, 128, 128, 128), 1)
    ),
    {"swizzle": 7},
    {"swizzle": -1},
    {"l2": -1},
    {"l2": 4},
    {"fill": -1},
    {"fill": 2},
    {"fill": 1, "type": 2},
]


def encode(driver, case):
    """The driver's answer, and whether that left a descriptor which changes with the address
    alone."""
    arguments = {**VALID, **case}
    memory = ctypes.create_string_buffer(b"?" * 320)
    base = (ctypes.addressof(memory) + 63) // 64 * 64 + arguments["align"]

    def array(kind, field):
        return (kind * len(arguments[field]))(*arguments[field])

    def described(address):
        return driver.cuTensorMapEncodeTiled(
            ctypes.c_void_p(base),
            arguments["type"],
            arguments["rank"],
            ctypes.c_void_p(address),
            array(ctypes.c_uint64, "sizes"),
            array(ctypes.c_uint64, "strides"),
            array(ctypes.c_uint32, "box"),
            array(ctypes.c_uint32, "steps"),
            arguments["interleave"],
            arguments["swizzle"],
            arguments["l2"],
            arguments["fill"],
        )

    before = ctypes.string_at(base, 128)
    code = described(arguments["address"])
    first = ctypes.string_at(base, 128)
    if code:
        return code, first == before
    replaced = driver.cuTensorMapReplaceAddress(ctypes.c_void_p(base), ctypes.c_void_p(0x4000))
    second = ctypes.string_at(base, 128)
    return code, replaced == 0 and described(0x4000) == 0 and ctypes.string_at(
        base, 128
    ) == second != first


def main():
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    print("ANSWERS " + json.dumps([encode(driver, case) for case in ACCEPTED + REFUSED]))


@pytest.fixture(scope="module")
def answers(phantora):
    done = phantora("--quiet", "--gpus-per-node", 1, "--", sys.executable, __file__)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.partition("ANSWERS ")[2])


def test_what_the_header_allows_is_described(answers):
    wrong = [case for case, answer in zip(ACCEPTED, answers) if answer != [0, True]]
    assert wrong == []


def test_what_the_header_forbids_is_refused_and_nothing_is_written(answers):
    wrong = [case for case, answer in zip(REFUSED, answers[len(ACCEPTED) :]) if answer != [1, True]]
    assert wrong == []


if __name__ == "__main__":
    main()
