"""Why it exists: the map of handles and the random numbers are plain functions. Each is compared
with an obviously right version."""

import ctypes
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

HERE = Path(__file__).parent
LEADER = HERE.parents[1] / "libintercept" / "leader"
FLOATS = {
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.bfloat16,
    10: torch.float8_e4m3fn,
    11: torch.float8_e5m2,
}
WHOLE = {
    0: torch.int8,
    1: torch.uint8,
    2: torch.int32,
    3: torch.uint32,
    4: torch.int64,
    5: torch.uint64,
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """map.c, with the map that it locks, and random.c in one library."""
    target = tmp_path_factory.mktemp("parts") / "parts.so"
    sources = [
        HERE / "c" / "map_and_random.c",
        LEADER.parent / "base/hash_map.c",
        LEADER / "gpu/map.c",
        LEADER / "gpu/random.c",
    ]
    flags = [
        "-std=gnu11",
        f"-I{LEADER.parent}",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-shared",
        "-fPIC",
    ]
    subprocess.run(["cc", *flags, "-o", target, *sources, "-lpthread", "-lm"], check=True)
    library = ctypes.CDLL(target)
    for name in ("ph_map_get", "ph_map_put", "ph_map_add", "ph_map_take"):
        getattr(library, name).restype = ctypes.c_void_p
    return library


CALLS = st.tuples(
    st.sampled_from(["get", "put", "add", "take", "clear"]),
    st.integers(1, 40),
    st.integers(1, 1 << 40),
)


@given(st.lists(CALLS, max_size=400))
def test_the_table_is_a_dictionary(parts, calls):
    # all zero: PTHREAD_RWLOCK_INITIALIZER, and empty
    table, oracle = (
        ctypes.create_string_buffer(256),
        {},
    )
    pointer = ctypes.c_void_p
    for call, number, value in calls:
        key = number * 4096  # handles are aligned, which a hash must bear
        if call == "get":
            assert parts.ph_map_get(table, pointer(key)) == oracle.get(key)
        elif call == "put":
            assert parts.ph_map_put(table, pointer(key), pointer(value)) == oracle.get(key)
            oracle[key] = value
        elif call == "add":
            assert parts.ph_map_add(table, pointer(key), pointer(value)) == oracle.get(key)
            oracle.setdefault(key, value)
        elif call == "take":
            assert parts.ph_map_take(table, pointer(key)) == oracle.pop(key, None)
        else:
            parts.ph_map_clear(table)
            oracle.clear()
    assert {key: parts.ph_map_get(table, pointer(key)) for key in oracle} == oracle
    parts.ph_map_clear(table)


def numbers(parts, dtype, kind, count):
    into = torch.zeros(count, dtype=dtype)
    parts.ph_random_numbers(
        ctypes.c_void_p(into.data_ptr()), ctypes.c_size_t(count * into.element_size()), kind
    )
    return into


@pytest.mark.parametrize("kind", FLOATS)
def test_numbers_of_floating_point_types_are_normal(parts, kind):
    count = 1 << 16
    values = numbers(parts, FLOATS[kind], kind, count).double().numpy()
    assert np.isfinite(values).all() and abs(values).max() <= 6
    error = 5 / math.sqrt(count)
    # 8-bit floats are truncated toward zero: by a sixteenth of their value with three bits of
    # mantissa, by an eighth with two
    shrunk = {10: 1 / 16, 11: 1 / 8}.get(kind, 0)
    assert abs(values.mean()) < error and 1 - shrunk - 0.03 < values.std() < 1 + error
    assert abs((abs(values) < 1).mean() - 0.6827) < (0.03 if shrunk else 0.01), (
        "the normal law's share within one deviation"
    )
    assert (values == 0).mean() < 0.02, "zeros are what these numbers are there to avoid"


@pytest.mark.parametrize("kind", WHOLE)
def test_numbers_of_integer_types_are_indices_into_any_table(parts, kind):
    values = numbers(parts, WHOLE[kind], kind, 4096).long()
    assert set(values.tolist()) == {0, 1} and 0.4 < values.double().mean() < 0.6


def test_numbers_are_the_same_in_every_process(parts):
    first, second = numbers(parts, torch.float32, 7, 100), numbers(parts, torch.float32, 7, 100)
    assert torch.equal(first, second) and len(set(first.tolist())) > 90
