"""A hub without sockets, for tests that feed it messages directly and look inside."""

import os
import struct
import sys
import tempfile
from pathlib import Path

import msgpack

from phantora_ns.config import load_cluster, load_gpu
from phantora_ns.hub.lookups import KernelModels
from phantora_ns.hub.recorder import FILE, Recorder
from phantora_ns.hub.registry import SharedStats
from phantora_ns.hub.result import result
from phantora_ns.hub.server import Hub, HubOptions
from phantora_ns.model.fold import Fold
from phantora_ns.protocol import RANK_STATS, RANK_STATS_MAGIC, RANK_STATS_VERSION, VERSION
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.graph import EventGraph
from phantora_ns.sim.topology import Topology

CLUSTER = load_cluster("h200-rail", nodes=2, gpus_per_node=2)
TOPOLOGY = Topology.build(CLUSTER)
GPU = load_gpu(CLUSTER.gpu)


# A process does not see its own locks as taken, and here hub and clients are one.
SharedStats.owner = lambda stats: os.getpid()


class NoTimes:
    versions = None
    scaled = renamed = 0
    scaled_from = None
    unmeasured = False

    def recorded_elsewhere(self, kind, fields):
        return False

    def lookup(self, kind, fields, context=None, parameters=None):
        return 1, 7, 0


class Bench:
    """A hub without sockets, and pages for its clients. `models`: None for kernel times that do not
    matter. `records`: it records, and its last rank leads. `fold`: which ranks do not run."""

    def __init__(
        self,
        folder: Path,
        models: KernelModels | None = None,
        records: bool = False,
        fold: Fold | None = None,
    ) -> None:
        (folder / "ranks").mkdir()
        nodes = 2 if fold is None else fold.world // 2
        topology = TOPOLOGY
        if fold is not None:
            topology = Topology.build(load_cluster("h200-rail", nodes=nodes, gpus_per_node=2))
        graph = EventGraph(
            FlowSimulator(topology.capacities), CollectiveModel(topology, GPU), topology.capacities
        )
        models = models or KernelModels(NoTimes(), lambda *_: 0, lambda *_: 1)
        options = HubOptions(nodes=nodes, gpus_per_node=2, table_capacity=64, fold=fold, per_node=2)
        recorder = Recorder(folder / FILE, {"gpu": GPU.model}) if records else None
        self.hub = Hub(folder, graph, models, options, recorder)
        self.hub.answers.internal_error = self.give_up
        self.folder = folder
        self.pages = []

    @staticmethod
    def give_up() -> None:
        """Called inside of the handler that would keep the hub alive: shows the defect instead."""
        raise sys.exc_info()[1]

    @property
    def outbox(self) -> list:
        """What the hub has to send, (identity, message) each."""
        return self.hub.answers.outbox

    def page(self) -> str:
        name = f"page{len(self.pages)}"
        fd = os.open(self.folder / "ranks" / name, os.O_RDWR | os.O_CREAT, 0o600)
        os.write(
            fd,
            struct.pack("<QQ", RANK_STATS_MAGIC, RANK_STATS_VERSION).ljust(RANK_STATS.size, b"\0"),
        )
        self.pages.append(fd)
        return name

    def hello(self, identity: bytes, rank: int, leads: bool = False) -> None:
        info = {"rank": rank, "node": rank // 2, "shm": self.page(), "leader": int(leads)}
        self.hub.handle(identity, msgpack.packb([1, 1, VERSION, info]))

    def close(self) -> None:
        for client in list(self.hub.clients.present()):
            self.hub.clients.leave(client)
        self.hub.lookups.table.close()
        if self.hub.recorder is not None:
            self.hub.recorder.close()
        for fd in self.pages:
            os.close(fd)


def hub_json(**fields) -> dict:
    """hub.json as a hub without clients writes it, with `fields` in place of its own. One that a test wrote by
    hand would lack each field that is added later."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        found = result(bench.hub)
        bench.close()
    assert fields.keys() <= found.keys()
    return found | fields
