"""The hub's loop: the socket, and termination by a signal.

Why it exists: server.py handles messages and has no socket. The loop takes all messages that have
arrived as one batch. After each batch, times are brought up to date and answers are released.
"""

from __future__ import annotations

import signal
import socket as sockets
from collections.abc import Callable

import zmq

from phantora_ns.hub.decoding import encode
from phantora_ns.hub.server import Hub
from phantora_ns.protocol import MESSAGE_MAX_BYTES

BATCH = 256
"""Most messages in one batch."""


def serve(hub: Hub, address: str, ready: Callable[[], None]) -> None:
    """Binds `address`, calls `ready()`, serves until SIGTERM or SIGINT. Raises zmq.ZMQError when it
    cannot bind."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.SNDHWM, 0)
    router.setsockopt(zmq.MAXMSGSIZE, MESSAGE_MAX_BYTES)
    wake, wakened = sockets.socketpair()
    wake.setblocking(False)
    wakened.setblocking(False)
    stopping: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, _: stopping.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    previous_wake = signal.set_wakeup_fd(wake.fileno())
    try:
        router.bind(address)
        ready()
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(wakened.fileno(), zmq.POLLIN)
        poller.register(hub.deaths.fileno(), zmq.POLLIN)
        while not stopping:
            events = dict(poller.poll(hub.releases.hold_ms()))
            _batch(hub, router)
            if hub.deaths.fileno() in events:
                hub.releases.bury(hub.deaths.look())
            if hub.recorder is not None:
                hub.recorder.flush()
        while _batch(hub, router):  # messages that had arrived before the signal
            pass
    finally:
        signal.set_wakeup_fd(previous_wake)
        for number, handler in previous.items():
            signal.signal(number, handler)
        hub.deaths.close()
        wake.close()
        wakened.close()
        router.close()
        context.term()


def _batch(hub: Hub, router: zmq.Socket[bytes]) -> bool:
    """Takes one batch, settles, sends answers. Returns whether there may be more messages."""
    receive, handle = router.recv_multipart, hub.handle
    more, quiet = True, True
    for _ in range(BATCH):
        try:
            frames = receive(zmq.NOBLOCK)
        except zmq.Again:
            more = False
            break
        quiet = False
        if len(frames) == 2:
            handle(frames[0], frames[1])
        else:
            hub.unreadable()
    hub.settle(quiet)
    for identity, reply in hub.answers.take():
        router.send_multipart((identity, encode(reply)), zmq.NOBLOCK)
    return more
