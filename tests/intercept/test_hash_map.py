"""Why it exists: several parts of the interceptor find their state by libintercept/base/hash_map.c.
Here it is compared with a dictionary, call by call, for keys that are spread and for keys that all
collide."""

import ctypes
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.intercept.parts import load_part

STUBS = """
#include "base/log.h"
#include <stdlib.h>
void ph_die(const char *format, ...) { (void)format, abort(); }
"""
WORD = 1 << 64
INVERSE = pow(0x9E3779B97F4A7C15, -1, WORD)
"""INVERSE * n has the product n in home_of(): the highest bits of n choose where a search starts."""


class Map(ctypes.Structure):
    """struct ph_hash_map"""

    _fields_ = (
        ("entry", ctypes.POINTER(ctypes.c_uint64 * 2)),
        ("capacity", ctypes.c_size_t),
        ("used", ctypes.c_size_t),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hash_map")
    library = load_part(folder, ["base/hash_map.c"], STUBS, flags=["-O1", "-g"])
    for name, numbers in (("get", 1), ("put", 2), ("take", 1), ("clear", 0)):
        function = getattr(library, f"ph_hash_map_{name}")
        function.argtypes = (ctypes.POINTER(Map), *[ctypes.c_uint64] * numbers)
        function.restype = ctypes.c_uint64 if numbers else None
    return library


class Both:
    """The map and a dictionary. Each call is made on both and must have the same result."""

    def __init__(self, library):
        self.library, self.map, self.oracle = library, Map(), {}

    def __call__(self, name, key=None, value=None):
        numbers = [number for number in (key, value) if number is not None]
        result = getattr(self.library, f"ph_hash_map_{name}")(self.map, *numbers)
        if name == "clear":
            self.oracle.clear()
        else:
            assert result == self.oracle.get(key, 0), (name, key)
        if name == "put":
            self.oracle[key] = value
        elif name == "take":
            self.oracle.pop(key, None)
        assert self.map.used == len(self.oracle)

    def check(self):
        """The entries in use are those of the dictionary, and a search finds each of them."""
        capacity = self.map.capacity
        assert capacity & (capacity - 1) == 0 and self.map.used * 4 <= capacity * 3
        entries = [tuple(self.map.entry[i]) for i in range(capacity)]
        assert sorted(entry for entry in entries if entry[1]) == sorted(self.oracle.items())
        for key, value in self.oracle.items():
            assert self.library.ph_hash_map_get(self.map, key) == value


KEYS = st.one_of(
    st.integers(0, 60),
    st.integers(0, 60).map(lambda number: number * 4096),  # addresses are aligned
    st.integers(0, 60).map(lambda number: INVERSE * number % WORD),  # all start at the first entry
    st.integers(1, 60).map(lambda number: -INVERSE * number % WORD),  # and at the last: they wrap
    st.sampled_from([WORD - 1, 1 << 63]),
)
CALLS = st.tuples(
    st.sampled_from(["get", "put", "put", "put", "take", "take"]),
    KEYS,
    st.integers(1, WORD - 1),
)


@given(st.lists(CALLS, max_size=300))
def test_it_does_what_a_dictionary_does(library, calls):
    both = Both(library)
    for name, key, value in calls:
        both(name, key, value if name == "put" else None)
    both.check()
    both("clear")
    both.check()


@pytest.mark.parametrize(
    "key_of",
    [
        lambda number: number,
        lambda number: 0x7F0000000000 + 16 * number,
        lambda number: INVERSE * number % WORD,
        lambda number: -INVERSE * number % WORD,
    ],
    ids=["numbers", "addresses", "first entry", "last entry"],
)
def test_keys_stay_found_through_growth_and_removal(library, key_of):
    both, order = Both(library), random.Random(7)
    keys = [key_of(number) for number in range(2000)]
    for key in keys:
        both("put", key, order.randrange(1, WORD))
    both.check()
    assert both.map.capacity == 4096
    order.shuffle(keys)
    for i, key in enumerate(keys[:1500]):
        both("take", key)
        if i % 100 == 0:
            both.check()
    both.check()
    for key in keys:
        both("take", key)
        both("put", key, order.randrange(1, WORD))
    both.check()
    assert both.map.capacity == 4096, "removed keys leave nothing behind"
    both("clear")


def test_an_empty_map_has_no_keys(library):
    both = Both(library)
    both("get", 0)
    both("take", 0)
    both("put", 0, 5)
    both("get", 0)
    both("take", 0)
    both("get", 0)
    both("clear")
