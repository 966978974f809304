"""Answers to clients, and the errors that replace them.

Why it exists: every request is answered exactly once, by some part of the hub. Whatever goes wrong,
no client that waits for an answer may hang. The loop sends the content of `outbox` after each batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import Any

from phantora_ns.hub.clients import Clients
from phantora_ns.hub.diagnostics import Diagnostics
from phantora_ns.hub.requests import Request
from phantora_ns.protocol import Message

INTERNAL = (
    "the hub failed (this is a defect of phantora-ns): the lines above on standard error say how; "
    "please report them"
)


class Answers:
    """All answers of the hub go through here."""

    def __init__(self, clients: Clients, diagnostics: Diagnostics) -> None:
        self._clients = clients
        self._diagnostics = diagnostics
        self.outbox: list[tuple[bytes, list[Any]]] = []

    def take(self) -> list[tuple[bytes, list[Any]]]:
        """Removes and returns the outbox: (identity, message) each."""
        outbox, self.outbox = self.outbox, []
        return outbox

    def send(self, identity: bytes, message: list[Any]) -> None:
        """Sends a message to a socket identity."""
        self.outbox.append((identity, message))

    def answer(self, request: Request, reply: list[Any]) -> None:
        """Answers a request, unless it has failed in the meantime."""
        if request.client.pending.pop(request.number, None) is not None:
            self.send(request.client.identity, reply)

    def refuse(self, identity: bytes, number: int, text: str) -> None:
        """Answers a request with an error."""
        client = self._clients.get(identity)
        if client is not None:
            client.pending.pop(number, None)
        self.send(identity, [Message.ERROR, number, text, int(self._diagnostics.said(text))])

    def announce(self, text: str) -> None:
        """Warns a person now, and in the report."""
        self._diagnostics.announce(text)

    def fail(self, text: str, members: Iterable[int]) -> None:
        """Reports an error once. Everything that these clients wait for, or will ask, fails instead
        of hanging."""
        self._diagnostics.error(text)
        for number in members:
            client = self._clients.numbered[number]
            if client.gone or client.failure is not None:
                continue
            client.failure = text
            for request in [*client.pending, *client.fetches]:
                self.refuse(client.identity, request, text)

    def internal_error(self) -> None:
        """Fails the job after a defect of the hub: times may be wrong from now on, and clients must
        not hang. Call it where the exception is handled."""
        self._diagnostics.internal_errors += 1
        if self._diagnostics.internal_errors == 1:
            traceback.print_exc()
            self.fail(INTERNAL, range(len(self._clients.numbered)))
