"""Why it exists: traces whose every number is known, written by hand."""

import gzip
import json

US = 1000


class MadeTrace:
    """Builds a Kineto trace of one rank; times in ns."""

    def __init__(self, rank=0, world=1):
        self.rank, self.world = rank, world
        self.events = []
        self.correlation = 0

    def add(self, category, name, lane, begin, end, **arguments):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": lane[0], "tid": lane[1]}
            | {"ts": begin / US, "dur": (end - begin) / US, "args": arguments}
        )

    def step(self, number, begin, end):
        self.add("user_annotation", f"ProfilerStep#{number}", (900, 900), begin, end)

    def host(self, name, begin, end, thread=900):
        self.add("cpu_op", name, (900, thread), begin, end)

    def kernel(self, name, begin, end, launched, stream=7, source=0):
        self.correlation += 1
        number = self.correlation
        self.add(
            "cuda_runtime",
            "cudaLaunchKernel",
            (900, 900),
            launched,
            launched + 1,
            correlation=number,
        )
        about = {"correlation": number, "stream": stream, "source": source}
        self.add("kernel", name, (0, stream), begin, end, **about)

    def collective(self, operation, begin, end, member, members, **about):
        self.correlation += 1
        kernel = {
            "all_gather": "AllGather",
            "all_reduce": "AllReduce",
            "reduce_scatter": "ReduceScatter",
        }.get(operation, "SendRecv")
        described = {
            "Operation": operation,
            "Operations": 1,
            "Communicator": 1,
            "Rank in communicator": member,
            "Group size": members,
            "Send bytes": 0,
            "Receive bytes": 0,
            "Algorithm": "ring",
            "Protocol": "Simple",
            "Channels": 1,
            "stream": 20,
            "correlation": self.correlation,
        }
        name = f"ncclDevKernel_{kernel}_RING_LL(x)"
        self.add("kernel", name, (0, 20), begin, end, **described | about)

    def memory(self, at, allocated, peak, operator="", thread=900, reserved=0):
        self.records = getattr(self, "records", 0) + 1
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 900, "tid": thread}
            | {"ts": at / US}
            | {
                "args": {
                    "Ev Idx": self.records,
                    "Device Id": 0,
                    "Total Allocated": allocated,
                    "Total Reserved": reserved or allocated,
                    "Peak Allocated": peak,
                    "Operator": operator,
                }
            }
        )

    def write(self, path):
        top = {
            "distributedInfo": {"rank": self.rank, "world_size": self.world},
            "phantora-ns": {"leftOutEvents": 0},
            "traceEvents": self.events,
        }
        path.write_bytes(gzip.compress(json.dumps(top).encode()))
        return path
