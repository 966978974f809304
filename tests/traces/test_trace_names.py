"""Names: those of real traces where they can be known, and truthful ones where they cannot."""

import json
from pathlib import Path

import msgpack
import pytest

from phantora_ns.compressed import read_text
from phantora_ns.protocol import LogComm
from phantora_ns.trace.describe import communication, describe
from phantora_ns.trace.log import Signature
from phantora_ns.trace.times import Launch

REAL = Path(__file__).resolve().parents[2] / "bench" / "accuracy" / "data" / "traces"
FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, SEND = 0, 1, 2, 3, 8
INT64, FP32, BF16 = 4, 7, 9


def described(kind, fields, registers=0, static_shared=0):
    return describe(Signature(1, registers, static_shared, msgpack.packb([kind, fields])), 132)


def comm_name(kind, dtype, algorithm="ring", description=""):
    comm = LogComm(0, 1, 7, 0, 0, 5, kind, dtype, 0, 8, 1, 1024, 1024, 3)
    return communication(comm, Launch(0, 0, algorithm, "Simple", 24), description)


@pytest.fixture(scope="module")
def real():
    """(kernel names, copy and fill names) of the real traces that the project has."""
    kernels, copies = set(), set()
    for path in sorted(REAL.glob("*.json.xz")):
        for event in json.loads(read_text(path))["traceEvents"]:
            if event.get("cat") == "kernel":
                kernels.add(event["name"])
            elif event.get("cat") in ("gpu_memcpy", "gpu_memset"):
                copies.add(event["name"])
    return kernels, copies


def test_collectives_are_called_as_nccls_kernels(real):
    names = {
        comm_name(kind, dtype)[0]
        for kind, dtype in (
            (ALL_GATHER, BF16),
            (REDUCE_SCATTER, BF16),
            (REDUCE_SCATTER, FP32),
            (ALL_REDUCE, BF16),
            (ALL_REDUCE, FP32),
            (BROADCAST, BF16),
            (SEND, BF16),
        )
    }
    assert names == {name for name in real[0] if name.startswith("ncclDevKernel")}


def test_trees_and_integers_have_kernels_of_their_own():
    assert comm_name(ALL_REDUCE, FP32, "tree")[0].startswith(
        "ncclDevKernel_AllReduce_Sum_f32_TREE_LL("
    )
    assert comm_name(ALL_REDUCE, INT64)[0].startswith("ncclDevKernel_AllReduce_Sum_u64_RING_LL(")


def test_what_was_chosen_is_told_beside_what_torch_says():
    said = '"Collective name": "allreduce", "Group size": 8'
    arguments = json.loads(
        "{" + comm_name(ALL_REDUCE, FP32, "tree", said)[1].removeprefix(", ") + "}"
    )
    assert arguments == {
        "grid": [24, 1, 1],
        "Collective name": "allreduce",
        "Group size": 8,
        "Algorithm": "tree",
        "Protocol": "Simple",
        "Channels": 24,
        "Operations": 1,
        "Operation": "all_reduce",
        "Communicator": 3,
        "Rank in communicator": 0,
        "Send bytes": 1024,
        "Receive bytes": 1024,
    }
    alone = json.loads("{" + comm_name(ALL_REDUCE, FP32)[1].removeprefix(", ") + "}")
    assert (alone["Collective name"], alone["In msg nelems"], alone["Group size"]) == (
        "allreduce",
        256,
        8,
    )
    assert alone["dtype"] == "Float"


def test_kernels_are_demangled_as_kineto_does(real):
    found = described(
        0, [FILL, 1056, 2, 1, 128, 1, 1, 512, 0, 0, 0, b""], registers=14, static_shared=16
    )
    assert found.category == "kernel" and found.name in real[0]
    assert json.loads("{" + found.arguments.removeprefix(", ") + "}") == {
        "registers per thread": 14,
        "shared memory": 528,
        "blocks per SM": 16.0,
        "warps per SM": 64.0,
        "grid": [1056, 2, 1],
        "block": [128, 1, 1],
    }


def test_copies_and_fills_are_worded_as_kineto_does(real):
    named = {
        described(3, [op, 4096, source, target]).name
        for op, source, target in ((0, 0, 2), (0, 1, 2), (0, 2, 2), (1, 0, 2))
    }
    assert named == real[1]
    assert described(3, [0, 4096, 2, 0]).name == "Memcpy DtoH (Device -> Pageable)"
    assert described(3, [0, 4096, 3, 2]).name == "Memcpy PtoP (Device -> Device)"
    assert (
        described(3, [1, 64, 0, 2]).category == "gpu_memset"
        and described(3, [0, 64, 1, 2]).category == "gpu_memcpy"
    )


@pytest.mark.parametrize(
    "fields, name",
    [
        (
            [0, 1, 0, 4096, 8192, 2048, 1, 14, 14, 14, 14, 68, 1, 2048, 2048, 4096],
            "cublasGemm bf16 4096x8192x2048 TN [simulated]",
        ),
        (
            [1, 0, 2, 64, 64, 32, 16, 28, 29, 14, 14, 68, 1, 64, 64, 64],
            "cublasLtMatmul fp8e4m3/fp8e5m2/bf16 64x64x32 NC batch 16 [simulated]",
        ),
    ],
)
def test_products_say_what_was_called(fields, name):
    assert described(1, fields).name == name


def test_what_makes_no_sense_is_said_to_be_unknown():
    assert described(0, ["x"]).name == described(9, []).name == "unknown work [simulated]"
    assert describe(Signature(1, 0, 0, b"\xc1"), 132).name == "unknown work [simulated]"
    assert described(4, ["cublasSdot_v2", [1024]]).name == "cublasSdot_v2(1024) [simulated]"
