"""Why it exists: micro-benchmarks need what a run has: a run directory, a hub, the environment of a
rank, and small programs in C."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from phantora_ns.config import load_gpu
from phantora_ns.config.device_conf import write_device_conf
from tests.hub.running import start_hub

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def library() -> Path:
    """The interceptor, as `make build` leaves it."""
    path = ROOT / "phantora_ns" / "lib" / "libphantora.so"
    assert path.exists(), "run `make build`"
    return path


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Compiles `target` from C files, with optimisation."""
    folder = tmp_path_factory.mktemp("compiled")

    def build(target: str, *words) -> Path:
        command = ["cc", "-std=gnu11", "-O2", "-iquote", ROOT / "libintercept", *words]
        subprocess.run([*command, "-o", folder / target], check=True)
        return folder / target

    return build


@pytest.fixture
def rank(library):
    """The environment of rank 0 of a run with one server of eight GPUs, whose hub is running."""
    with tempfile.TemporaryDirectory(prefix="ph-") as folder:
        run_dir, names = Path(folder, "run"), Path(folder, "names")
        hub = start_hub(run_dir, main=("-m", "phantora_ns.hub"), nodes=1, gpus_per_node=8)
        write_device_conf(load_gpu("h200"), run_dir / "device.conf")
        names.mkdir()
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (names / name).symlink_to(library)
        packages = (Path(sys.prefix) / "lib").glob("python3*/site-packages")
        zmq = next(path for p in packages for path in p.glob("pyzmq.libs/libzmq-*.so*"))
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("PHANTORA_", "LD_"))}
        yield outer | {
            "LD_PRELOAD": str(library),
            "LD_LIBRARY_PATH": str(names),
            "PHANTORA_RUN_DIR": str(run_dir),
            "PHANTORA_NODE": "0",
            "PHANTORA_GPUS_PER_NODE": "8",
            "PHANTORA_LIBZMQ": str(zmq),
            "PHANTORA_VALUES_LIB": "",
            "PHANTORA_HOST_TIME": "none",
            "RANK": "0",
            "WORLD_SIZE": "1",
        }
        hub.close()
