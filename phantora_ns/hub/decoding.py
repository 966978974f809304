"""Frames into messages, and replies into frames.

Why it exists: a client may have another version, or be broken. Every frame passes `decode` before
anything acts on it. msgspec decodes and checks it in one step against the classes of messages.py.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from phantora_ns.hub.messages import AnyMessage, FromClient, Request

_decode: Callable[[bytes], FromClient] = msgspec.msgpack.Decoder(AnyMessage).decode
_REQUESTS = {
    kind.__struct_config__.tag for kind in AnyMessage.__args__ if issubclass(kind, Request)
}
_KINDS = {kind.__struct_config__.tag for kind in AnyMessage.__args__}
encode = msgspec.msgpack.Encoder().encode
"""The frame of a reply."""


class BadMessage(ValueError):
    """Bytes that are not a valid message. `request`: the number for the error reply; `seq`: the
    message's sequence number. Both are None when they cannot be decoded."""

    def __init__(self, text: str, request: int | None = None, seq: int | None = None) -> None:
        super().__init__(text)
        self.request = request
        self.seq = seq


def decode(frame: bytes) -> FromClient:
    """The message in a frame. Raises BadMessage when it is not a message, or has the wrong shape."""
    try:
        message: FromClient = _decode(frame)
        return message
    except Exception as error:  # of many kinds; none of them may stop the hub
        raise BadMessage(f"no message: {error}", *_numbers(frame)) from None


def _numbers(frame: bytes) -> tuple[int | None, int | None]:
    """(request, seq) of a message that is otherwise invalid."""
    try:
        message = msgspec.msgpack.decode(frame)
    except Exception:
        return None, None
    if type(message) is not list or not message or type(message[0]) is not int:
        return None, None
    if message[0] not in _KINDS:
        return None, None
    seq, request = (
        number if type(number) is int else None for number in (message + [None, None])[1:3]
    )
    return request if message[0] in _REQUESTS else None, seq
