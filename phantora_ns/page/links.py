"""What crossed each link: collectives planned again, their bytes added up.

Why it exists: the hub keeps no history of flows. A collective's flows follow from the cluster, the
release of NCCL and the collective itself, so the same planner gives them again after the run
(sim/collectives.py). Rule: a collective whose members or bytes the traces do not say is counted as
left out, not guessed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phantora_ns.config.nccl import nccl_constants
from phantora_ns.model.cluster import Cluster
from phantora_ns.model.nccl import NcclVersion
from phantora_ns.page.waits import Launches
from phantora_ns.protocol import Collective
from phantora_ns.sim.collectives import CollectiveModel, Plan
from phantora_ns.sim.topology import Topology

BINS = 200
"""Points of a link's utilisation over time."""
MOST_LINKS = 40
MOST_FLOWS = 30
_KINDS = {label: number for number, label in enumerate(Collective.LABELS)}
_PAIRS = ("send", "recv")


@dataclass
class _Transfer:
    """A collective, or a message, as the traces of its members describe it."""

    operation: str
    size: int
    count_bytes: int
    members: dict[int, int]  # rank in the communicator -> rank of the job
    start_ns: int
    end_ns: int
    group: str
    algorithm: str
    protocol: str
    sender: int | None = None
    receiver: int | None = None


@dataclass
class _Kind:
    """Transfers of one operation, size and number of members."""

    transfers: int = 0
    total_bytes: int = 0
    busy_ns: int = 0
    algorithms: Counter[str] = field(default_factory=Counter)
    links: Counter[int] = field(default_factory=Counter)


class LinkUse:
    """Bytes by link, of the transfers that end in a window."""

    def __init__(self, cluster: Cluster, choices: str | None, begin_ns: int, end_ns: int) -> None:
        """`choices`: the release of NCCL whose choices the run made. Raises ConfigError."""
        self.topology = Topology.build(cluster)
        self._model = CollectiveModel(self.topology, cluster.gpu_model)
        if choices:
            version = NcclVersion.parse(choices)
            self._model.use(nccl_constants(version, cluster.gpu_model.compute_major))
        self._begin_ns, self._end_ns = begin_ns, max(end_ns, begin_ns + 1)
        self._bytes: Counter[int] = Counter()
        self._busy_ns: Counter[int] = Counter()
        self._bins: dict[int, list[float]] = defaultdict(lambda: [0.0] * BINS)
        self._kinds: dict[tuple[str, int, int, str], _Kind] = defaultdict(_Kind)
        self.left_out = 0

    def add_all(self, launches: Launches, gpus: Mapping[int, int]) -> None:
        """Adds the communication of all traced ranks; `gpus`: the global GPU of each rank."""
        for transfer in _transfers(launches):
            if not self._begin_ns <= transfer.end_ns < self._end_ns:
                continue
            plan = self._plan(transfer, gpus)
            if plan is None:
                self.left_out += 1
            else:
                self._add(transfer, plan)

    def _plan(self, transfer: _Transfer, gpus: Mapping[int, int]) -> Plan | None:
        try:
            if transfer.operation in _PAIRS:
                if transfer.sender is None or transfer.receiver is None:
                    return None
                pair = gpus[transfer.sender], gpus[transfer.receiver], transfer.count_bytes
                return self._model.plan_pairs([pair], transfer.size)
            places = [gpus[transfer.members[member]] for member in range(transfer.size)]
            return self._model.plan(_KINDS[transfer.operation], places, transfer.count_bytes)
        except (KeyError, ValueError):
            return None  # a member is not traced, or has no GPU of its own

    def _add(self, transfer: _Transfer, plan: Plan) -> None:
        used: Counter[int] = Counter()
        for flow in plan.flows:
            for link in flow.links:
                used[link] += flow.size_bytes * flow.count
        kind = self._kinds[transfer.operation, transfer.count_bytes, transfer.size, transfer.group]
        length_ns = max(1, transfer.end_ns - transfer.start_ns)
        kind.transfers += 1
        kind.busy_ns += length_ns
        kind.total_bytes += sum(flow.size_bytes * flow.count for flow in plan.flows)
        kind.algorithms[f"{transfer.algorithm} {transfer.protocol}"] += 1
        kind.links.update(used)
        self._bytes.update(used)
        bins = self._spread(transfer.start_ns, transfer.end_ns)
        for link, count in used.items():
            self._busy_ns[link] += length_ns
            held = self._bins[link]
            for number, share in bins:
                held[number] += share * count

    def _spread(self, start_ns: int, end_ns: int) -> list[tuple[int, float]]:
        """(bin, share of the transfer in it); its bytes are taken to flow evenly."""
        start_ns = max(start_ns, self._begin_ns)
        width = (self._end_ns - self._begin_ns) / BINS
        first = int((start_ns - self._begin_ns) / width)
        last = min(BINS - 1, int((end_ns - self._begin_ns) / width))
        if end_ns <= start_ns or last <= first:
            return [(min(first, BINS - 1), 1.0)]
        shares = []
        for number in range(first, last + 1):
            low = max(start_ns, self._begin_ns + number * width)
            high = min(end_ns, self._begin_ns + (number + 1) * width)
            shares.append((number, (high - low) / (end_ns - start_ns)))
        return shares

    def result(self) -> dict[str, Any]:
        """Links and flows, busiest first, as JSON data."""
        window_ns = self._end_ns - self._begin_ns
        rows = []
        for link, count in self._bytes.items():
            capacity = self.topology.capacities[link]
            a, b = self.topology.link_ends(link)
            rows.append(
                {
                    "link": f"{a} -> {b}",
                    "class": f"{_class(a)} to {_class(b)}",
                    "bytes": count,
                    "bytes_per_ns": round(capacity, 3),
                    "utilisation": round(count / capacity / window_ns, 6),
                    "number": link,
                }
            )
        rows.sort(key=lambda row: (-row["utilisation"], row["link"]))
        classes: dict[str, dict[str, Any]] = {}
        for row in rows:
            found = classes.setdefault(
                row["class"],
                {"class": row["class"], "links": 0, "sum": 0.0, "busiest": row["link"]}
                | {"most": row["utilisation"], "over_time": self._over_time(row)},
            )
            found["links"] += 1
            found["sum"] += row["utilisation"]
        for found in classes.values():
            found["mean"] = round(found.pop("sum") / found["links"], 6)
        return {
            "window": [self._begin_ns, self._end_ns],
            "bins": BINS,
            "classes": list(classes.values()),
            "links": [_without(row, "number") for row in rows[:MOST_LINKS]],
            "links_in_all": len(rows),
            "flows": self._flows()[:MOST_FLOWS],
            "left_out": self.left_out,
        }

    def _over_time(self, row: Mapping[str, Any]) -> list[float]:
        width_ns = (self._end_ns - self._begin_ns) / BINS
        room = self.topology.capacities[row["number"]] * width_ns
        return [round(count / room, 4) for count in self._bins[row["number"]]]

    def _flows(self) -> list[dict[str, Any]]:
        names = self.topology.link_names
        capacities = self.topology.capacities
        rows = []
        for (operation, count_bytes, members, group), kind in self._kinds.items():
            link = max(kind.links, key=lambda n: (kind.links[n] / capacities[n], -n), default=None)
            rate = 0.0 if link is None else kind.links[link] / kind.busy_ns
            rows.append(
                {
                    "operation": operation,
                    "count_bytes": count_bytes,
                    "members": members,
                    "group": group,
                    "transfers": kind.transfers,
                    "total_bytes": kind.total_bytes,
                    "mean_ns": round(kind.busy_ns / kind.transfers),
                    "algorithm": kind.algorithms.most_common(1)[0][0],
                    "busiest_link": "" if link is None else names[link],
                    "link_bytes_per_ns": round(rate, 3),
                    "link_share": 0.0 if link is None else round(rate / capacities[link], 4),
                }
            )
        return sorted(rows, key=lambda row: (-row["total_bytes"], str(row)))


def _without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def _class(end: str) -> str:
    """What kind of thing a link ends at: "node-3/gpu-1" is a GPU, "leaf-4" a leaf."""
    word = end.rpartition("/")[2].rstrip("0123456789").rstrip("-")
    return {"gpu": "GPU", "nic": "NIC", "nvswitch": "NVSwitch", "pcie": "PCIe switch"}.get(
        word, word
    )


def _transfers(launches: Launches) -> list[_Transfer]:
    """The launches of all ranks, members of one transfer put together by communicator and end."""
    grouped: dict[tuple[int, int], list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    known: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, found in launches.items():
        for launch in found:
            grouped[launch["communicator"], launch["end_ns"]].append((rank, launch))
            known[launch["communicator"]][launch["member"]] = rank
    result = []
    for (communicator, _), parts in sorted(grouped.items()):
        transfer = _joined(parts)
        transfer.members = known[communicator]
        result.append(transfer)
    return result


def _joined(parts: Sequence[tuple[int, Mapping[str, Any]]]) -> _Transfer:
    """A collective is one transfer for all its members. Of messages that end together, who sends to
    whom is known only when there is one."""
    _, first = parts[0]
    operation = first["operation"]
    if operation not in _PAIRS:
        return _transfer(parts)
    senders = [rank for rank, launch in parts if launch["operation"] == "send"]
    receivers = [rank for rank, launch in parts if launch["operation"] == "recv"]
    transfer = _transfer(parts)
    single = all(launch["operations"] == 1 for _, launch in parts)
    if single and len(senders) == 1 and len(receivers) == 1:
        transfer.sender, transfer.receiver = senders[0], receivers[0]
    return transfer


def _transfer(parts: Sequence[tuple[int, Mapping[str, Any]]]) -> _Transfer:
    _, launch = parts[0]
    return _Transfer(
        "send" if launch["operation"] in _PAIRS else launch["operation"],
        launch["members"],
        max(_count_bytes(part) for _, part in parts),
        {},
        max(part["start_ns"] for _, part in parts),
        launch["end_ns"],
        launch["group"],
        launch["algorithm"],
        launch["protocol"],
    )


def _count_bytes(launch: Mapping[str, Any]) -> int:
    """`count_bytes` of OPS in docs/wire-protocol.md, times the operations of the launch."""
    send, receive, members = launch["send_bytes"], launch["receive_bytes"], launch["members"]
    count = {
        "all_gather": send,
        "reduce_scatter": receive,
        "all_to_all": send // max(1, members),
        "gather": send,
        "scatter": receive,
    }.get(launch["operation"], max(send, receive))
    return count * launch["operations"]
