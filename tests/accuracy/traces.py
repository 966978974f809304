"""Why it exists: hand-made Kineto traces, written as files, for tests whose right answer is
known."""

import json
from pathlib import Path


class Tracer:
    """Collects events; times in whole microseconds. Every launch gets a host call and, if named, an
    operator around it."""

    def __init__(self) -> None:
        self.events = []
        self.number = 0

    def step(self, number, start, end):
        self.events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{number}",
                "pid": 1,
                "tid": 1,
                "ts": start,
                "dur": end - start,
                "args": {},
            }
        )

    def kernel(
        self,
        name,
        start,
        length,
        *,
        launched=None,
        operator=None,
        instance=None,
        stream=7,
        grid=(1, 1, 1),
        category="kernel",
        shapes=None,
        **arguments,
    ):
        """A kernel; `launched`: when its host call began (None: the trace does not say); returns
        the instance's id."""
        self.number += 1
        own = {
            "stream": stream,
            "device": 0,
            "context": 1,
            "correlation": self.number,
            "grid": list(grid),
            **arguments,
        }
        if operator and instance is None:
            instance = 1000 + self.number
            op = {"External id": instance} | ({"Input Dims": shapes} if shapes else {})
            at = start if launched is None else launched
            self.events.append(
                {
                    "ph": "X",
                    "cat": "cpu_op",
                    "name": operator,
                    "pid": 1,
                    "tid": 1,
                    "ts": at,
                    "dur": 1,
                    "args": op,
                }
            )
        if instance is not None:
            own["External id"] = instance
        if launched is not None:
            self.events.append(
                {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "pid": 1,
                    "tid": 1,
                    "ts": launched,
                    "dur": 1,
                    "args": {"correlation": self.number},
                }
            )
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": start,
                "dur": length,
                "args": own,
            }
        )
        return instance

    def collective(
        self,
        name,
        start,
        length,
        elements,
        *,
        members=8,
        dtype="BFloat16",
        stream=28,
        launched=None,
    ):
        self.kernel(
            f"ncclDevKernel_{name}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            start,
            length,
            stream=stream,
            launched=launched,
            **{
                "Collective name": {"AllGather": "_allgather_base", "AllReduce": "allreduce"}[name],
                "In msg nelems": elements // (members if name == "AllGather" else 1),
                "Out msg nelems": elements,
                "Group size": members,
                "dtype": dtype,
            },
        )

    def write(self, path: Path) -> Path:
        path.write_text(
            json.dumps(
                {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": self.events}
            )
        )
        return path
