"""Why it exists: PyTorch allocates the workspace that cuDNN reports, and kernel times depend on the
calls that we record for cuDNN. Both must be right.

The oracle is NVIDIA's own library, which answers for a GPU that is described to it (see
libintercept/simulated/math/cudnn_real.c).
"""

import json
import os
import re
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


@pytest.mark.parametrize("case", ["statuses", "versions", "descriptors", "convolutions"])
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


def test_a_plans_workspace_for_a_variant_pack(real, ours, hub):
    """NVIDIA's library gives it for a handle only, which needs a driver."""
    plans, without_handle, *asked = ours("workspace")
    assert plans[0] == 0 < plans[1]
    assert without_handle == [2000, 77]
    assert asked == [plans, [2000, 77], [3000, 77]]
    assert hub.notes("unsupported") == ["cudnnGetExecutionPlanWorkspaceSize with overridden shapes"]
    # None: before release 9.23 there was no such function
    assert real("workspace") in (None, [plans, without_handle])


def test_an_attribute_that_nobody_knows_is_taken_with_a_warning(ours, hub):
    assert ours("new_attribute") == [0, 2000]
    (warning,) = hub.notes("warning")
    assert warning.startswith("attribute 9999 of cuDNN's descriptor type 17 is newer")


def tables(root, *arguments):
    """Runs tools/cudnn_tables.py."""
    command = [sys.executable, root / "tools" / "cudnn_tables.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def header():
    """The installed cudnn_graph.h."""
    path = REAL.parent.parent / "include" / "cudnn_graph.h"
    if not path.exists():
        pytest.skip("cuDNN's headers are not installed")
    return path


def test_the_tables_agree_with_the_installed_header(root, header):
    done = tables(root, "--check", header)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_header_with_something_new_or_another_number_is_told(root, header, tmp_path):
    text = header.read_text()
    changed = tmp_path / "cudnn_graph.h"
    minor = re.search(r"#define CUDNN_GRAPH_MINOR (\d+)", text)
    text = text.replace(minor[0], "#define CUDNN_GRAPH_MINOR 98")
    text = text.replace("CUDNN_ATTR_POINTWISE_AXIS ", "CUDNN_ATTR_POINTWISE_AXES ")
    changed.write_text(re.sub(r"(CUDNN_TYPE_FRACTION\s*=) 26", r"\1 96", text))
    done = tables(root, "--check", changed)
    assert done.returncode == 1
    for line in (
        "POINTWISE_AXES = 9 is missing",
        "POINTWISE_AXIS is not in",
        "FRACTION is 96, not 26",
    ):
        assert line in done.stdout
