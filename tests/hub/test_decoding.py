"""Frames: what passes is of the described shape, and what does not says whom to answer."""

import sys
import tomllib
from pathlib import Path

import msgpack
import pytest

from phantora_ns.hub.decoding import BadMessage, decode, encode

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = {
    name: message
    for name, message in tomllib.loads((ROOT / "protocol" / "messages.toml").read_text())[
        "message"
    ].items()
    if "fields" in message
}
SAMPLES = {
    "int": 3,
    "time": 5,
    "str": "text",
    "bytes": b"b",
    "map": {},
    "extra": {},
    "expression": [0, 1, 2],
    "expression[]": [[0, 1, 2]],
    "any[]": [1, None],
    "int[]": [0, 7],
    "operation[]": [[0, 4, 7, 0, -1, None, 1]],
    "measurement[]": [[0, [1], None, [7]]],
}
SEQ, REQUEST = 11, 12


def sample(message):
    start = [message["number"], SEQ, *([REQUEST] if message.get("request") else [])]
    return [*start, *(SAMPLES[field["type"]] for field in message["fields"])]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_decoded_field_by_field(name):
    message = MESSAGES[name]
    found = decode(msgpack.packb(sample(message)))
    assert type(found).__name__.lower() == name.replace("_", "")
    assert found.seq == SEQ and getattr(found, "request", REQUEST) == REQUEST
    for field in message["fields"]:
        if "[]" not in field["type"] and field["type"] != "extra":
            assert getattr(found, field["name"]) == SAMPLES[field["type"]]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_another_shape_says_whom_to_answer(name):
    message = MESSAGES[name]
    good = sample(message)
    wrong = [[*good, 1], good[:-1]]
    wrong += [[*good[:at], object, *good[at + 1 :]] for at in range(3, len(good))]
    for one in wrong:
        one = [True if item is object else item for item in one]  # a bool is no integer here
        with pytest.raises(BadMessage) as found:
            decode(msgpack.packb(one))
        assert found.value.seq == SEQ
        assert found.value.request == (REQUEST if message.get("request") else None)


@pytest.mark.parametrize("clock", [-1, 1 << 60, 1.0, True, None])
def test_a_clock_is_a_time(clock):
    with pytest.raises(BadMessage):
        decode(msgpack.packb([MESSAGES["bye"]["number"], SEQ, clock]))


@pytest.mark.parametrize(
    "extra",
    [
        {"nodes": [[1]]},
        {"nodes": {}},
        {"stalls": [[0, []]]},
        {"stalls": [["0", [], []]]},
        {"keep": -1},
        {"keep": "1"},
    ],
)
def test_what_comes_along_is_checked(extra):
    good = sample(MESSAGES["times"])
    with pytest.raises(BadMessage) as found:
        decode(msgpack.packb([*good[:4], extra, *good[5:]]))
    assert found.value.request == REQUEST


def test_unknown_keys_that_come_along_are_ignored():
    good = sample(MESSAGES["times"])
    assert decode(msgpack.packb([*good[:4], {"later": 1}, *good[5:]])).extra.keep is None


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x93\x0c\x05",
        msgpack.packb([]),
        msgpack.packb({}),
        msgpack.packb([99, 1, 1]),
        msgpack.packb([[2], 1, 1]),
        msgpack.packb([0, 1, "text"]),
        b"\x97\x02\x01\x01\x01\x80\x01" + b"\x91" * 10 * sys.getrecursionlimit() + b"\x90",
        b"\x95\x0b\x01\x01\xa1\xff\xa1x",
    ],
)
def test_what_is_no_message_at_all_answers_nobody(frame):
    with pytest.raises(BadMessage) as found:
        decode(frame)
    if not frame.startswith(b"\x95"):
        assert found.value.request is None


def test_replies_are_msgpack():
    reply = [10, 3, 1 << 40, 0, 7, b"\x00", {"a": [None, "text", -1]}]
    assert msgpack.unpackb(encode(reply)) == reply == msgpack.unpackb(msgpack.packb(reply))
    assert encode(reply) == msgpack.packb(reply)
