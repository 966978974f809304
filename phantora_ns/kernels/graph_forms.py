"""cuDNN's operation graphs in one form, whichever release of cuDNN the job has.

Why it exists: newer front ends of cuDNN (torch 2.14 on) write attention's mask and softmax as one
operation each, where older ones wrote a dozen pointwise operations. What is computed is the same, so
a time that was recorded under one release must be found under another. Rule: `plain` writes a graph
as release 9.19 would have received it; what it does not know, it leaves as it is.
"""

from __future__ import annotations

import math
from typing import Any

# cudnn_graph.h (libintercept/work/cudnn_names.gen.h): operations ...
POINTWISE, MATMUL, REDUCTION, RESHAPE, RNG = 13, 19, 22, 31, 33
SDPA, BAND_MASK, SOFTMAX = 41, 44, 45
# ... attributes of attention, with the operations inside of it, ...
Q, K, V, OUT, STATS, SCALE = 2800, 2801, 2802, 2803, 2804, 2805
INNER, INNER_SOFTMAX = 2811, 2814
# ... of the other operations, ...
MASK_X, MASK_VALUE, MASK_Y, MASK_COMPARISON = 3000, 3005, 3006, 3007
SOFTMAX_X, SOFTMAX_Y, SOFTMAX_STATS = 3100, 3101, 3102
RESHAPE_MODE = 2202
MODE, PRECISION, AXIS, OPERATOR, COMPUTE, DETERMINISTIC = 0, 1, 9, 1600, 1601, 1602
X, B, Y, ALPHA, BETA, CHOICE = 751, 752, 753, 754, 755, 758
REDUCE_X, REDUCE_Y = 1610, 1611
PRODUCT_TYPE, PRODUCT_A, PRODUCT_B, PRODUCT_C = 1500, 1520, 1521, 1522
# ... and pointwise modes, reductions and data types.
ADD, MULTIPLY, DIVIDE, SUBTRACT, EXP, LOG = 0, 1, 6, 9, 13, 15
NOT_BEFORE, POSITION, SELECT = 303, 501, 601
SUM, LARGEST = 0, 3
FLOAT, INT32, BOOLEAN = 0, 4, 11

Operation = list[Any]


def plain(graph: Any) -> Any:
    """The graph as release 9.19 writes it. Returns `graph` itself where nothing changes, and never
    raises. O(operations)."""
    try:
        return _plain(graph)
    except (LookupError, TypeError, ValueError, StopIteration):
        return graph  # not a graph, or one of a form that nobody writes today


def plain_fields(fields: list[Any]) -> list[Any]:
    """The same for the fields of a signature."""
    return [plain(fields[0])] if len(fields) == 1 else fields


def _plain(graph: list[Operation]) -> list[Operation]:
    if len(graph) == 1 and graph[0][0] == SDPA:
        return _attention(dict(map(tuple, graph[0][1]))) or graph
    kinds = {kind for kind, _ in graph}
    if not kinds & {BAND_MASK, SOFTMAX, RESHAPE}:
        return graph
    given: dict[int, list[dict[int, Any]]] = {BAND_MASK: [], SOFTMAX: []}
    rest: list[Operation] = []
    for kind, attributes in graph:
        if kind in given:  # they are last in the graph, wherever they belong
            given[kind].append(dict(map(tuple, attributes)))
        else:
            rest.append([kind, [p for p in attributes if list(p) != [RESHAPE_MODE, 0]]])
    added = [operation for mask in given[BAND_MASK] for operation in _band_mask(mask)]
    for softmax in given[SOFTMAX]:
        added += _softmax(softmax[SOFTMAX_X], softmax[SOFTMAX_STATS], softmax[SOFTMAX_Y])
    if not added:
        return rest
    # the weights of a softmax go through a dropout; a backward pass computes them by EXP
    at = rest.index(
        next(o for o in rest if (o[0] == RNG if given[SOFTMAX] else [MODE, EXP] in o[1]))
    )
    return [*rest[:at], *added, *rest[at:]]


def _attention(given: dict[int, Any]) -> list[Operation] | None:
    """Forward attention. Without operations between product and softmax, release 9.19 has it as one
    operation too."""
    if not given.keys() & {INNER, INNER_SOFTMAX} or given.keys() - {
        Q, K, V, OUT, STATS, SCALE, INNER, INNER_SOFTMAX,
    }:  # fmt: skip
        return None
    query, key = given[Q], given[K]
    batch, heads, queries, _ = query[2]
    keys = key[2][2]
    scores = _packed(FLOAT, [batch, heads, queries, keys])
    rows = _packed(FLOAT, [batch, heads, queries, 1])
    if INNER_SOFTMAX in given:
        ((kind, attributes),) = given[INNER_SOFTMAX]
        softmax = dict(map(tuple, attributes))
        if kind != SOFTMAX or softmax.keys() != {SOFTMAX_X, SOFTMAX_Y, SOFTMAX_STATS}:
            return None
        rows = softmax[SOFTMAX_STATS]
    inner = given.get(INNER, [])
    if not inner:
        kept = [[name, given[name]] for name in (Q, K, V, OUT)]
        return [[SDPA, [*kept, [STATS, rows], [SCALE, given[SCALE]]]]]
    between: list[Operation] = []
    for kind, attributes in inner:
        if kind == BAND_MASK:
            between += _band_mask(dict(map(tuple, attributes)))
        elif kind == POINTWISE:
            between.append([kind, attributes])
        else:
            return None
    turned = ["t", key[1], _swapped(key[2]), _swapped(key[3])]
    weights = [scores[0], query[1], *scores[2:]]
    return [
        _product(query, turned, scores),
        _pointwise(MULTIPLY, scores, given[SCALE], scores),
        *between,
        *_softmax(scores, rows, weights),
        _product(weights, given[V], given[OUT]),
    ]


def _softmax(scores: list, rows: list, weights: list) -> list[Operation]:
    return [
        _reduction(LARGEST, scores, rows),
        _pointwise(SUBTRACT, scores, rows, scores),
        _pointwise(EXP, scores, None, scores),
        _reduction(SUM, scores, rows),
        _pointwise(LOG, rows, None, rows),
        _pointwise(ADD, rows, rows, rows),
        _pointwise(DIVIDE, scores, rows, weights),
    ]


def _band_mask(mask: dict[int, Any]) -> list[Operation]:
    """Scores above the diagonal are replaced. Raises ValueError for another mask."""
    if mask.keys() != {MASK_X, MASK_VALUE, MASK_Y, MASK_COMPARISON}:
        raise ValueError("a mask that is not the causal one")
    if mask[MASK_COMPARISON] != NOT_BEFORE:
        raise ValueError("a mask that is not the causal one")
    scores = mask[MASK_X]
    position = ["t", INT32, *scores[2:]]
    kept = ["t", BOOLEAN, *scores[2:]]
    return [
        _pointwise(POSITION, scores, None, position, axis=2),
        _pointwise(POSITION, scores, None, position, axis=3),
        _pointwise(NOT_BEFORE, position, position, kept, precision=BOOLEAN),
        _pointwise(SELECT, scores, mask[MASK_VALUE], mask[MASK_Y], choice=kept),
    ]


def _pointwise(
    mode: int,
    x: list,
    b: list | None,
    y: list,
    *,
    precision: int = FLOAT,
    axis: int | None = None,
    choice: list | None = None,
) -> Operation:
    attributes = [
        [MODE, mode], [PRECISION, precision], [AXIS, axis], [X, x], [B, b], [Y, y], [ALPHA, 1.0],
        [BETA, 1.0], [CHOICE, choice],
    ]  # fmt: skip
    return [POINTWISE, [pair for pair in attributes if pair[1] is not None]]


def _reduction(operator: int, x: list, y: list) -> Operation:
    return [
        REDUCTION,
        [[OPERATOR, operator], [COMPUTE, FLOAT], [DETERMINISTIC, 0], [REDUCE_X, x], [REDUCE_Y, y]],
    ]


def _product(a: list, b: list, c: list) -> Operation:
    return [
        MATMUL,
        [[PRODUCT_TYPE, FLOAT], [PRODUCT_A, a], [PRODUCT_B, b], [PRODUCT_C, c]],
    ]


def _packed(kind: int, dims: list[int]) -> list:
    return ["t", kind, dims, [math.prod(dims[at + 1 :]) for at in range(len(dims))]]


def _swapped(dims: list[int]) -> list[int]:
    """The last two exchanged."""
    return [*dims[:-2], dims[-1], dims[-2]]
