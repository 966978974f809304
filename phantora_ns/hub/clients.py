"""The processes of the job that talk to the hub, from their HELLO until they leave.

Why it exists: every part of the hub needs the list of clients. A client is admitted once, by a HELLO
that names rank statistics of this run. It leaves with BYE or when it is found dead.
"""

from __future__ import annotations

from collections.abc import Callable, ValuesView
from pathlib import Path
from typing import Any

from phantora_ns.hub.communicators import Communicators
from phantora_ns.hub.decoding import BadMessage
from phantora_ns.hub.folding import Folding
from phantora_ns.hub.registry import Client, SharedStats, StatsError
from phantora_ns.protocol import RANK_STATS_FILE, VERSION
from phantora_ns.sim.graph import EventGraph


class Refused(BadMessage):
    """A HELLO that is rejected; the text goes into the answer."""


class Clients:
    """All clients of a run. `everyone` holds them, including those that have left; `numbered` holds
    them by number. There the number of an absent rank (folding.py) is its representative's too."""

    def __init__(
        self,
        run_dir: Path,
        graph: EventGraph,
        communicators: Communicators,
        folding: Folding | None = None,
    ) -> None:
        self._stats_dir = run_dir / RANK_STATS_FILE
        self._graph = graph
        self._communicators = communicators
        self._folding = folding
        self._present: dict[bytes, Client] = {}
        self.get: Callable[[bytes], Client | None] = self._present.get
        """The client of a socket identity, None when none has sent HELLO."""
        self._open: list[Client] = []
        """Those that have left with times that are not final, and began with the present ones."""
        self._killed = False
        """Whether one of them left without a BYE."""
        self._ended_ns = 0
        """When the last of those ended that began with the present ones."""
        self.everyone: list[Client] = []
        self.numbered: list[Client] = []

    def present(self) -> ValuesView[Client]:
        """The clients that have not left."""
        return self._present.values()

    def admit(self, identity: bytes, version: int, info: dict[Any, Any]) -> Client:
        """Admits a client by its HELLO. Raises Refused."""
        if version != VERSION:
            raise Refused(f"the hub speaks version {VERSION}, not {version}; run make build")
        name = info.get("shm")
        if type(name) is not str or not name or "/" in name or "\0" in name or name in (".", ".."):
            raise Refused(
                "shm must name a file in the run directory's ranks folder; run make build"
            )
        try:
            stats = SharedStats(self._stats_dir / name)
        except StatsError as error:
            raise Refused(str(error)) from None
        if self._killed:
            self._close_ended()
        if self._ended_ns and not self._present:
            self._graph.run()
            self._graph.begin_anew(self._ended_ns)
            self._open.clear()  # their times say nothing beside those of who comes
            self._ended_ns = 0
        client = Client(identity, self._graph.add_client(), info, stats)
        self._present[identity] = client
        self.everyone.append(client)
        if self._folding is not None:
            client.absent = self._folding.stand_in(client)
        self.numbered += [client] * (1 + len(client.absent))
        return client

    def leave(self, client: Client, killed: bool = False) -> None:
        """Removes a client that has ended. `killed`: without a BYE."""
        del self._present[client.identity]
        self._communicators.depart(client)
        client.leave()
        self._ended_ns = max(self._ended_ns, client.end_ns())
        self._open.append(client)
        self._killed |= killed

    def _close_ended(self) -> None:
        """Removes what ended clients have queued. A process that comes after a rank was killed may
        be one of a job that starts its ranks again."""
        self._killed = False
        self._graph.run()
        present = [number for client in self.present() for number in client.numbers()]
        ended = {number: client.end_ns() for client in self._open for number in client.numbers()}
        closed = self._graph.close(ended, present)
        self._open = [client for client in self._open if client.number not in closed]
