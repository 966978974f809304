"""The hub's side of docs/wire-protocol.md: message numbers, their shapes, and what may be in them.

Why it exists: a client may be of another version, or broken. Every message passes `parse` before
anything acts on it, so that the handlers see only the shapes they were written for; the check is
one tuple comparison because it runs for every message of every rank.
"""

from __future__ import annotations

from typing import Any

import msgpack

from phantora_ns.sim.graph import Op

VERSION = 1

ERROR = 0
(
    HELLO,
    SYNC,
    QUERY,
    TIMES,
    COMM_INIT,
    COMM_SPLIT,
    COMM_FREE,
    OPS,
    FETCH,
    LOOKUP,
    NOTE,
    BYE,
    MEASURED,
    HOST,
) = range(1, 15)

MAX_TIME_NS = 1 << 60
MAX_RANKS = 1 << 20

_SHAPES = {
    HELLO: (int, int, int, dict),
    SYNC: (int, int, int, int, dict, int, list),
    QUERY: (int, int, int, int, dict, list, list),
    TIMES: (int, int, int, int, dict, list),
    COMM_INIT: (int, int, int, int, dict, int, list, bytes, int, int, int),
    COMM_SPLIT: (int, int, int, int, dict, int, list, int, int, int),
    COMM_FREE: (int, int, int, int),
    OPS: (int, int, int, dict, int, int, list, list),
    FETCH: (int, int, int, int, int, int),
    LOOKUP: (int, int, int, int, int, int, list),
    NOTE: (int, int, int, str, str),
    BYE: (int, int, int),
    MEASURED: (int, int, int, list),
    HOST: (int, int, int, dict),
}
_CLOCK_AT = {HELLO: None, OPS: 2, COMM_FREE: 2, NOTE: 2, BYE: 2, MEASURED: 2, HOST: 2}
"""Where `clock` stands in a message, where it is not at 3."""
REQUESTS = frozenset((SYNC, QUERY, TIMES, COMM_INIT, COMM_SPLIT, FETCH, LOOKUP))


class BadMessage(ValueError):
    """Bytes that are no message of ours. `request` is the number to send an error reply to, and
    `seq` the message's own, where they can be made out."""

    def __init__(self, text: str, request: int | None = None, seq: int | None = None) -> None:
        super().__init__(text)
        self.request = request
        self.seq = seq


def parse(frame: bytes) -> list[Any]:
    """The message in a frame, its shape and clock checked. Raises BadMessage on anything else."""
    try:
        message = msgpack.unpackb(frame, strict_map_key=False)
    except Exception as error:  # msgpack raises many kinds, and none of them may stop the hub
        raise BadMessage(f"not msgpack: {error}") from None
    if type(message) is not list or not message:
        raise BadMessage("not an array")
    kind = message[0]
    shape = _SHAPES.get(kind) if type(kind) is int else None
    if shape is None:
        raise BadMessage(f"unknown message {kind!r}")
    if tuple(map(type, message)) != shape:
        raise BadMessage(f"message {kind} of the wrong shape", *_numbers(message))
    clock_at = _CLOCK_AT.get(kind, 3)
    if clock_at is not None and not 0 <= message[clock_at] < MAX_TIME_NS:
        raise BadMessage(f"message {kind} with an impossible clock", *_numbers(message))
    return message


def _numbers(message: list[Any]) -> tuple[int | None, int | None]:
    """(request, seq) of a message that is wrong otherwise."""
    numbers = [field if type(field) is int else None for field in (message + [None, None])[1:3]]
    return numbers[1] if message[0] in REQUESTS else None, numbers[0]


def parse_ops(items: list[Any]) -> list[tuple[Op, bytes | None, int]]:
    """OPS' list of operations as (operation, payload, flags). Raises BadMessage."""
    ops = []
    for item in items:
        if type(item) is not list or len(item) != 7:
            raise BadMessage("an operation is an array of seven")
        kind, count_bytes, dtype, redop, peer, payload, flags = item
        if tuple(map(type, (kind, count_bytes, dtype, redop, peer, flags))) != (int,) * 6:
            raise BadMessage("an operation's fields are integers")
        if payload is not None and type(payload) is not bytes:
            raise BadMessage("a payload is bytes or nil")
        ops.append((Op(kind, count_bytes, dtype, redop, peer), payload, flags))
    return ops


def parse_samples(items: list[Any]) -> list[tuple[int, list[Any], list[Any] | None, list[int]]]:
    """MEASURED's list as (kind, fields, context, durations in ns); without durations, what cannot
    be measured.

    Raises BadMessage.
    """
    samples = []
    for item in items:
        if type(item) is not list or len(item) != 4:
            raise BadMessage("a measurement is an array of four")
        kind, fields, context, durations_ns = item
        if (type(kind), type(fields), type(durations_ns)) != (int, list, list) or not (
            context is None or type(context) is list
        ):
            raise BadMessage("a measurement is [kind, fields, context, durations]")
        if any(type(ns) is not int or not 0 < ns < MAX_TIME_NS for ns in durations_ns):
            raise BadMessage("a measured duration is a positive number of nanoseconds")
        samples.append((kind, fields, context, durations_ns))
    return samples


pack = msgpack.Packer(autoreset=True).pack
"""Encodes a reply."""
