"""Why it exists: logs as nccl-tests prints them, with times from anywhere. The formats are those of
NVIDIA/nccl-tests, src/common.cu and src/util.cu (releases named below); nothing of them is copied from
a log."""

from __future__ import annotations

from dataclasses import dataclass

from phantora_ns.calibrate.nccl_log import bus_share

FORMATS = ("2.0", "2.13", "2.19")
COLUMNS = {
    "all_reduce": ("sum", -1),
    "reduce_scatter": ("sum", -1),
    "sendrecv": ("sum", -1),
    "all_gather": ("none", -1),
    "alltoall": ("none", -1),
    "broadcast": ("none", 0),
    "reduce": ("sum", 0),
    "gather": ("none", 0),
    "scatter": ("none", 0),
    "hypercube": ("", -1),
}
OLD_COLUMNS = {
    "all_gather": (),
    "alltoall": (),
    "broadcast": ("root",),
    "all_reduce": ("redop",),
    "reduce_scatter": ("redop",),
    "reduce": ("redop", "root"),
}
"""What release 2.0 has between the type and the times; later tests did not exist."""


@dataclass(frozen=True)
class Log:
    """Of one test on `nodes` servers with `gpus` each."""

    operation: str
    nodes: int
    gpus: int
    gpu: str = "NVIDIA H100 80GB HBM3"
    format: str = "2.19"
    nccl: int = 22809
    groups: tuple[int, ...] = ()  # of each rank; all 0

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    def text(self, times: dict[int, tuple[float, float]]) -> str:
        """The whole log. `times`: by size in bytes, microseconds out of place and in place."""
        return "\n".join([*self.head(), *(self.row(*one) for one in times.items()), *self.tail()])

    def head(self) -> list[str]:
        lines = []
        if self.format == "2.19":
            lines += [
                f"# nccl-tests version 2.19.6 nccl-headers={self.nccl} nccl-library={self.nccl}",
                f"# Collective test starting: {self.operation}_perf",
            ]
        lines += [
            "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 "
            "iters: 20 agg iters: 1 validation: 1 graph: 0",
            "#",
            "# Using devices",
        ]
        lines += [self.rank(number) for number in range(self.ranks)]
        return [*lines, "#", *self.header()]

    def rank(self, number: int) -> str:
        node, device = divmod(number, self.gpus)
        group = self.groups[number] if self.groups else 0
        if self.format == "2.0":
            return (
                f"#   Rank {number:2d} Pid {1000 + number:6d} on {f'host-{node}':>10s} "
                f"device {device:2d} [0x{16 + device:02x}] {self.gpu}"
            )
        return (
            f"#  Rank {number:2d} Group {group:2d} Pid {1000 + number:6d} on {f'host-{node}':>10s} "
            f"device {device:2d} [0000:{16 + device:02x}:00] {self.gpu}"
        )

    def names(self) -> list[str]:
        between = ("redop", "root") if self.format != "2.0" else OLD_COLUMNS[self.operation]
        wrong = "error" if self.format == "2.0" else "#wrong"
        return ["size", "count", "type", *between, *(["time", "algbw", "busbw", wrong] * 2)]

    def header(self) -> list[str]:
        return [
            "#                                        out-of-place                       in-place",
            "#       " + "  ".join(f"{name:>8}" for name in self.names()),
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
        ]

    def row(self, size: int, times: tuple[float, float]) -> str:
        ranks = max(self.groups.count(self.groups[0]), 1) if self.groups else self.ranks
        redop, root = COLUMNS[self.operation]
        words = {"redop": redop, "root": f"{root}"}
        parts = [f"{size:12d}", f"{size // 4:12d}", f"{'float':>8}"]
        parts += [f"{words[name]:>6}" for name in self.names() if name in words]
        counted = size * (ranks - 1) / ranks if self.operation == "hypercube" else size
        for us in times:
            rate = counted / us / 1000
            printed = f"{us:7.2f}" if us < 1e4 else f"{us:7.1f}" if us < 1e5 else f"{us:7.0f}"
            bus = rate * bus_share(self.operation, ranks)
            parts += [f"{printed}  {rate:6.2f}  {bus:6.2f}  {0:6g}"]
        return "  ".join(parts)

    def tail(self) -> list[str]:
        return ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 12.3456", "#", ""]
