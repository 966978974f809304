"""Why it exists: the records that the profiler is given have the layouts of CUPTI, and the numbers of
its calls. The oracle is a compiler that reads the installed header."""

import re
import subprocess
from pathlib import Path

import pytest

SITE = Path(pytest.__file__).parents[1]
RECORDS = {
    ("ph_kernel_record", "Kernel"): {
        "kind": "kind", "registers": "registersPerThread", "start": "start", "end": "end",
        "completed": "completed", "device": "deviceId", "context": "contextId",
        "stream": "streamId", "grid": "gridX", "block": "blockX",
        "static_shared": "staticSharedMemory", "dynamic_shared": "dynamicSharedMemory",
        "correlation": "correlationId", "grid_id": "gridId", "name": "name", "queued": "queued",
        "submitted": "submitted", "shared_executed": "sharedMemoryExecuted",
        "graph_node": "graphNodeId", "graph": "graphId", "channel": "channelID",
        "channel_type": "channelType", "cluster": "clusterX",
        "most_clusters": "maxActiveClusters",
    },
    ("ph_copy_record", "Memcpy"): {
        "kind": "kind", "copy": "copyKind", "source": "srcKind", "destination": "dstKind",
        "flags": "flags", "bytes": "bytes", "start": "start", "end": "end", "device": "deviceId",
        "context": "contextId", "stream": "streamId", "correlation": "correlationId",
        "graph_node": "graphNodeId", "graph": "graphId", "channel": "channelID",
        "channel_type": "channelType",
    },
    ("ph_fill_record", "Memset"): {
        "kind": "kind", "value": "value", "bytes": "bytes", "start": "start", "end": "end",
        "device": "deviceId", "context": "contextId", "stream": "streamId",
        "correlation": "correlationId", "flags": "flags", "memory": "memoryKind",
        "graph_node": "graphNodeId", "graph": "graphId", "channel": "channelID",
        "channel_type": "channelType",
    },
    ("ph_call_record", "API"): {
        "kind": "kind", "id": "cbid", "start": "start", "end": "end", "process": "processId",
        "thread": "threadId", "correlation": "correlationId", "result": "returnValue",
    },
    ("ph_external_record", "ExternalCorrelation"): {
        "kind": "kind", "external_kind": "externalKind", "external": "externalId",
        "correlation": "correlationId",
    },
}  # fmt: skip
NUMBERS = {
    "PH_ACTIVITY_MEMCPY": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "PH_ACTIVITY_MEMSET": "CUPTI_ACTIVITY_KIND_MEMSET",
    "PH_ACTIVITY_DRIVER": "CUPTI_ACTIVITY_KIND_DRIVER",
    "PH_ACTIVITY_RUNTIME": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "PH_ACTIVITY_CONCURRENT_KERNEL": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    "PH_ACTIVITY_EXTERNAL_CORRELATION": "CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION",
    # numbers that the code has by themselves
    "1": "CUPTI_ACTIVITY_MEMCPY_KIND_HTOD",
    "2": "CUPTI_ACTIVITY_MEMCPY_KIND_DTOH",
    "8": "CUPTI_ACTIVITY_MEMCPY_KIND_DTOD",
    "9": "CUPTI_ACTIVITY_MEMCPY_KIND_HTOH",
    "10": "CUPTI_ACTIVITY_MEMCPY_KIND_PTOP",
    "3": "CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0",
    "4": "CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1",
    "12": "CUPTI_ERROR_MAX_LIMIT_REACHED",
    "27": "CUPTI_ERROR_NOT_SUPPORTED",
}


def newest(text, record):
    """The newest form of a record that a header declares: CUpti_ActivityKernel10."""
    versions = re.findall(rf"\}} (CUpti_Activity{record}(\d*));", text)
    return max(versions, key=lambda found: int(found[1] or 0))[0]


def test_records_and_numbers_are_cuptis(root, tmp_path):
    headers = [*(SITE / "nvidia").glob("*/include/cupti_activity.h")]
    crt = SITE / "triton" / "backends" / "nvidia" / "include"
    if not headers or not crt.exists():
        pytest.skip("no CUPTI headers are installed beside torch")
    text = headers[0].read_text()
    checks = [f"{ours} == {theirs}" for ours, theirs in NUMBERS.items()]
    for (ours, record), members in RECORDS.items():
        theirs = newest(text, record)
        checks.append(f"sizeof(struct {ours}) >= sizeof({theirs})")
        checks += [
            f"offsetof(struct {ours}, {mine}) == offsetof({theirs}, {its})"
            for mine, its in members.items()
        ]
    checks += [
        f"{number} == CUPTI_{'DRIVER' if driver == 'true' else 'RUNTIME'}_TRACE_CBID_{name}"
        for name, number, driver in known_calls(root, headers[0].parent)
    ]
    source = tmp_path / "records.c"
    source.write_text(
        "#include <stddef.h>\n#include <cupti.h>\n"
        f'#include "{root}/libintercept/simulated/profiler/records.h"\n'
        + "".join(f'_Static_assert({check}, "{check}");\n' for check in checks)
    )
    folders = sorted({*(SITE / "nvidia").glob("*/include"), crt})
    command = ["cc", "-std=gnu11", *(f"-I{one}" for one in folders), "-c", source]
    subprocess.run([*command, "-o", tmp_path / "records.o"], check=True)


def known_calls(root, headers):
    """(name with its version, number, of the driver) of each call that the profiler is told of."""
    code = (root / "libintercept" / "simulated" / "profiler" / "profile.c").read_text()
    found = re.findall(r'\{"(cu\w+)", (\d+), (true|false)\}', code)
    assert len(found) > 10
    header = (headers / "cupti_runtime_cbid.h").read_text()
    for name, number, driver in found:
        versions = re.findall(rf"CUPTI_RUNTIME_TRACE_CBID_({name}_v\d+)\b", header)
        yield name if driver == "true" else versions[0], number, driver
