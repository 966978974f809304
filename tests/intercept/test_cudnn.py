"""Why it exists: PyTorch allocates the workspace that cuDNN reports, and kernel times depend on the
calls that we record for cuDNN. Both must be right.

The oracle is NVIDIA's own library, which answers for a GPU that is described to it (see
libintercept/simulated/math/cudnn_real.c).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent / "cudnn_script.py"
SITE = Path(pytest.__file__).parents[1]
REAL = SITE / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"


@pytest.fixture
def device(gpu):
    """The GPU as NVIDIA's library describes one, made from the model's attributes."""
    a = gpu.attributes
    return {
        "deviceName": gpu.name, "deviceVer": 900, "driverVer": 13000, "maxGridSize": [a[5], a[6], a[7]],
        "maxBlockSize": [a[2], a[3], a[4]], "regsPerBlock": a[12], "multiProcessorCount": a[16],
        "smClockRateKHz": a[13],
        "memClockRateKHz": a[36], "l2CacheSize": a[38], "warpSize": a[10], "maxSharedMemoryPerBlock": a[8],
        "maxSharedMemoryPerBlockOptin": a[97], "reservedSharedMemoryPerBlock": a[111], "maxRegistersPerSM": a[82],
        "pciDeviceId": 0, "maxCtasPerSM": a[106], "maxThreadsPerBlock": a[1], "maxThreadsPerSM": a[39],
        "isTccDriver": a[35], "supportCoopLaunch": a[95], "totalGlobalMem": gpu.memory_bytes, "cudaDeviceId": 0,
    }  # fmt: skip


@pytest.fixture
def real(device):
    """Runs a case of cudnn_script.py on NVIDIA's library, in a process without our interceptor."""
    if not REAL.exists():
        pytest.skip("cuDNN's wheel is not installed")

    def run(case):
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "CUDNN_"))}
        environment = {**outer, "DEVICE": json.dumps(device)}
        command = [sys.executable, SCRIPT, "real", REAL, case]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def ours(environment, built_library):
    """Runs a case on libphantora.so with NVIDIA's library loaded beside it, as in a PyTorch
    process."""

    def run(case):
        arguments = ["ours", str(built_library), case]
        start = (
            f"import ctypes, runpy, sys; ctypes.CDLL({str(REAL)!r}); sys.argv[1:] = {arguments!r}"
        )
        command = [sys.executable, "-c", f"{start}; runpy.run_path({str(SCRIPT)!r})"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("case", ["statuses", "versions", "convolutions"])
def test_answers_equal_nvidias(real, ours, case):
    assert ours(case) == real(case)


def test_a_convolution_puts_its_signature_on_the_stream_and_outlives_its_parts(ours, hub):
    assert ours("execute") == [2004, 2002, 0, 0]
    (graph,), *more = hub.signatures(2)
    assert more == [], "the second run of a plan finds its time in the rank's own table"
    bf16 = 9

    def tensor(*dims):
        n, c, h, w = dims
        return ["t", bf16, [*dims], [c * h * w, 1, c * w, c]]

    assert graph == [
        [10, [
            [100, 0], [101, 1], [102, [1, 1]], [103, [2, 2]], [104, [1, 1]], [105, [1, 1]], [106, 2],
            [700, 1.0], [701, 0.0], [703, tensor(128, 64, 3, 3)],
            [704, tensor(8, 64, 56, 56)], [705, tensor(8, 128, 28, 28)],
        ]],
    ]  # fmt: skip


def test_constants_equal_the_headers(root, tmp_path):
    headers = REAL.parent.parent / "include"
    cuda = SITE / "nvidia" / "cu13" / "include"
    # the wheel of the runtime's headers lacks this part
    crt = SITE / "triton" / "backends" / "nvidia" / "include"
    if not (headers / "cudnn_graph.h").exists():
        pytest.skip("cuDNN's headers are not installed")
    source = tmp_path / "constants.c"
    pairs = {
        "CUDNN_BAD_PARAM": "CUDNN_STATUS_BAD_PARAM", "CUDNN_NOT_INITIALIZED": "CUDNN_STATUS_NOT_INITIALIZED",
        "CUDNN_NULL_POINTER": "CUDNN_STATUS_BAD_PARAM_NULL_POINTER",
        "CUDNN_NOT_SUPPORTED": "CUDNN_STATUS_NOT_SUPPORTED",
        "CUDNN_NOT_FINALIZED": "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED",
        "CUDNN_ATTRIBUTE_TYPE": "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE",
        "CUDNN_HOST_ALLOCATION_FAILED": "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "CUDNN_PLAN_WORKSPACE_SIZE": "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE",
        "CUDNN_PLAN_JSON": "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION",
        "CUDNN_PLAN_DEVICEPROP": "CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP",
        "CUDNN_PLAN_ENGINE_CONFIG": "CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG",
        "CUDNN_DEVICEPROP_JSON": "CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION",
        **{f"CUDNN_{name}": f"CUDNN_ATTR_{name}" for name in (
            "ENGINEHEUR_OPERATION_GRAPH", "ENGINEHEUR_RESULTS", "ENGINEHEUR_DEVICEPROP", "ENGINECFG_ENGINE",
            "ENGINECFG_WORKSPACE_SIZE", "ENGINECFG_SHARED_MEMORY_USED", "OPERATIONGRAPH_OPS",
            "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT", "TENSOR_DATA_TYPE", "TENSOR_DIMENSIONS", "TENSOR_STRIDES",
            "ENGINE_OPERATION_GRAPH", "ENGINE_GLOBAL_INDEX", "ENGINE_DEVICEPROP")},
        **{f"CUDNN_{name}": f"CUDNN_BACKEND_{name}_DESCRIPTOR" for name in (
            "ENGINE", "ENGINECFG", "ENGINEHEUR", "OPERATIONGRAPH", "VARIANT_PACK", "TENSOR", "DEVICEPROP")},
        "CUDNN_PLAN": "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR",
    }  # fmt: skip

    # Both sides may not be included together (type names differ, enumerators do not): one file of
    # numbers each.
    def numbers(include, names):
        source.write_text(
            f"{include}\n#include <stdio.h>\nint main(void) {{ "
            + " ".join(f'printf("%d\\n", (int){n});' for n in names)
            + " return 0; }\n"
        )
        program = tmp_path / "constants"
        command = [
            "cc",
            "-w",
            f"-I{headers}",
            f"-I{cuda}",
            f"-I{crt}",
            f"-I{root}/libintercept",
            source,
            "-o",
            program,
        ]
        subprocess.run(command, check=True)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()

    ours = numbers(f'#include "{root}/libintercept/work/cudnn.h"', pairs)
    assert dict(zip(pairs, ours)) == dict(
        zip(pairs, numbers(f'#include "{headers}/cudnn.h"', pairs.values()))
    )


@pytest.mark.slow
def test_pytorchs_attention_runs_forward_and_backward_with_nvidias_workspaces(run_python, hub):
    source = """
import torch
kind = dict(device="cuda", dtype=torch.bfloat16)
q, k, v = (torch.empty(1, 1024, h, 128, **kind).transpose(1, 2).requires_grad_() for h in (32, 8, 8))
torch.cuda.memory._record_memory_history("all", context=None)
o = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False)[0]
o.backward(torch.empty_like(o))
print([e["size"] for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"])
"""
    done = run_python(source)
    sizes = json.loads(done.stdout.splitlines()[-1])
    q_bytes = 32 * 1024 * 128 * 2
    # dQ in fp32, dK and dV for every query head, the rows' sums, and what the plan itself wants
    backward = sizes[-1]
    assert backward >= 4 * q_bytes + 32 * 1024 * 4 and backward < 5 * q_bytes
    forward_graph, backward_graph = (fields[0] for fields in hub.signatures(2))
    matmul = 19
    assert [len([op for op in g if op[0] == matmul]) for g in (forward_graph, backward_graph)] == [
        2,
        5,
    ]
    assert hub.notes("unsupported") == []


@pytest.mark.slow
def test_pytorchs_batch_norm_is_a_call_signature(run_python, hub):
    source = """
import torch
x = torch.empty(8, 64, 56, 56, device="cuda", requires_grad=True)
torch.nn.BatchNorm2d(64, device="cuda")(x).backward(torch.empty_like(x))
"""
    run_python(source)
    fp32, spatial = 0, 1
    integers = [spatial, 0, fp32, fp32, 4, 8, 64, 56, 56, 64 * 56 * 56, 56 * 56, 56, 1]
    calls = [fields for fields in hub.signatures(4) if fields[0].startswith("cudnn")]
    assert calls == [
        ["cudnnBatchNormalizationForwardTraining", integers],
        ["cudnnBatchNormalizationBackward", integers],
    ]
    assert any("batch normalisation" in text for text in hub.notes("warning"))
