"""What is compared of a representative and its witness, and what may differ."""

import pytest

from phantora_ns.hub.witnesses import Pair

ALL_REDUCE = [(0, 4096, 9, 0, -1, None, 0)]
GATHER = [(1, 4096, 9, -1, -1, None, 0)]


def ops(shapes, vertex, expression, roles=()):
    return "ops", shapes, ("whole", 0), vertex, expression, (None, None), list(roles)


OWN = [
    ("vertex", 3, [1, 500, 0]),
    ops(ALL_REDUCE, 4, [3, 20, 0]),
    ("wait", 0, [1, 7, 0], [4, 0, 0]),
    ("sync", 5, [4, 0, 0, 1, 900, 0]),
    ("split", ("whole", 0), 6, [5, 10, 0]),
    ops(GATHER, 7, [6, 30, 0]),
    ("step", [7, 40, 0], 1000, 2000),
]


def compared(other, times):
    pair = Pair(1, 0, True, False, times)
    for item in OWN:
        pair.add(0, item)
    for item in other:
        pair.add(1, item)
    pair.end()
    return pair


@pytest.mark.parametrize("times", [True, False])
def test_equal_ranks_agree(times):
    pair = compared(OWN, times)
    assert pair.difference is None
    assert pair.compared == (7 if times else 4)


def later():
    """The same work, but the host is later, and knows that the all-reduce is over when it would wait for it."""
    return [
        ops(ALL_REDUCE, 3, [1, 523, 0]),
        ("split", ("whole", 0), 4, [1, 913, 0]),
        ops(GATHER, 5, [4, 33, 0]),
        ("step", [5, 44, 0], 1000, 2003),
    ]


def test_the_same_work_at_other_times_agrees_where_times_are_not_compared():
    assert compared(later(), False).difference is None
    assert compared(later(), True).difference is not None


@pytest.mark.parametrize(
    "at, item, said",
    [
        (0, ops(GATHER, 3, [1, 523, 0]), "calls all_gather"),
        (0, ops([(0, 8192, *ALL_REDUCE[0][2:])], 3, [1, 523, 0]), "8192 bytes"),
        (1, ("split", ("whole", 1), 4, [1, 913, 0]), "splits a communicator"),
        (1, ops(GATHER, 5, [4, 33, 0]), "calls all_gather"),
        (3, ("step", [5, 44, 0], 1001, 2003), "ends a step"),
    ],
)
def test_other_work_never_agrees(at, item, said):
    """Also where times are not compared: calls, sizes, communicators, and what the GPU worked in a step."""
    other = later()
    other[at] = item
    difference = compared(other, False).difference
    assert difference is not None and difference.witness == 0
    assert said in difference.text


def test_who_does_less_or_more_does_not_agree():
    assert compared(later()[:-1], False).difference is not None
    more = [*later(), ("step", [5, 50, 0], 10, 20)]
    assert compared(more, False).difference is not None
