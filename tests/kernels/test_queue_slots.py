"""A call takes as many slots of the launch queue as real traces show for it."""

import json
from collections import Counter
from pathlib import Path

import pytest

from phantora_ns.compressed import read_text
from phantora_ns.kernels.queue_slots import QueueSlots, queue_slots_of

TRACES = Path(__file__).resolve().parents[2] / "bench" / "accuracy" / "data" / "traces"
MULTIPROCESSORS = 132
OPERATORS = ("aten::mm", "aten::_cudnn_attention_forward", "aten::_cudnn_attention_backward")


def product(m, n, k):
    return [1, 1, 0, m, n, k, 1, 14, 14, 14, 14, 68, 1, k, k, m]


def attention(kind, query, key, heads, kv_heads):
    return [
        [
            [
                kind,
                [
                    [query, ["t", 9, [1, heads, 4096, 128], []]],
                    [key, ["t", 9, [1, kv_heads, 4096, 128], []]],
                ],
            ]
        ]
    ]


def launched(name):
    """How often an operator of a real trace put which number of works on its stream."""
    events = [
        e
        for e in json.loads(read_text(TRACES / f"{name}.json.xz"))["traceEvents"]
        if e.get("ph") == "X"
    ]
    works = {
        e["args"]["correlation"]
        for e in events
        if e.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")
    }
    calls = [
        e
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and e["args"].get("correlation") in works
    ]
    found = Counter()
    for e in events:
        if e.get("cat") == "cpu_op" and e["name"] in OPERATORS:
            inside = sum(
                c["tid"] == e["tid"] and e["ts"] <= c["ts"] <= e["ts"] + e["dur"] for c in calls
            )
            found[e["name"], inside] += 1
    return found


def products(tokens, width, grouped, between, vocabulary, layers):
    """(m, n, k) of one step of a Llama: `grouped` is the width of keys and values, `between` that
    of the feed-forward layer."""
    square, narrow, wide, back = (
        (width, width, 2),
        (grouped, width, 2),
        (between, width, 2),
        (width, between, 1),
    )
    for out, depth, times in [*(square, narrow, wide, back) * layers, (vocabulary, width, 1)]:
        yield from [(out, tokens, depth)] * times  # forward
        yield from [(depth, tokens, out)] * times  # gradient of the input
        yield from [(depth, out, tokens)] * times  # gradient of the weight


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("1b-none-4k-mbs2", (8192, 2048, 512, 8192, 128256, 16)),
        ("1b-ddp-4k-mbs4", (16384, 2048, 512, 8192, 128256, 16)),
        ("8b-fsdp-4k", (4096, 4096, 1024, 14336, 128256, 32)),
    ],
)
def test_a_steps_products_are_as_many_works_as_in_the_trace(name, sizes):
    counted = Counter(
        queue_slots_of(1, product(*each), MULTIPROCESSORS).count for each in products(*sizes)
    )
    assert counted == {
        count: times
        for (operator, count), times in launched(name).items()
        if operator == "aten::mm"
    }


def test_attention_is_as_many_works_as_in_the_traces():
    grouped, own = launched("1b-none-4k-mbs2"), launched("13b-tp8-4k")
    backward = queue_slots_of(2, attention(43, 2851, 2852, 32, 8), MULTIPROCESSORS)
    assert grouped["aten::_cudnn_attention_backward", backward.count] == 16
    backward = queue_slots_of(2, attention(43, 2851, 2852, 5, 5), MULTIPROCESSORS)
    assert own["aten::_cudnn_attention_backward", backward.count] == 20
    forward = queue_slots_of(2, attention(41, 2800, 2801, 32, 8), MULTIPROCESSORS)
    assert grouped["aten::_cudnn_attention_forward", forward.count] == 16 and forward.ahead == 1


def test_copies_between_host_and_device_are_no_works():
    ways = ((0, 2), (1, 2), (2, 1), (2, 2))
    copies = {way: queue_slots_of(3, [0, 4096, *way], MULTIPROCESSORS).count for way in ways}
    assert copies == {(0, 2): 0, (1, 2): 0, (2, 1): 0, (2, 2): 1}
    assert queue_slots_of(3, [1, 4096, 0, 2], MULTIPROCESSORS) == QueueSlots()


@pytest.mark.parametrize(
    "kind, fields",
    [
        (1, []),
        (1, ["x"] * 16),
        (2, [None]),
        (2, []),
        (3, [0]),
        (4, ["name", []]),
        (9, None),
        (0, ["k"]),
    ],
)
def test_what_cannot_be_read_is_one_work(kind, fields):
    assert queue_slots_of(kind, fields, MULTIPROCESSORS) == QueueSlots()
