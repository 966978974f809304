"""Why it exists: a leader is only useful if it names each piece of GPU work with the same bytes as
a simulated rank that asks for its time. Parts of training steps run under both; the measured and
the requested signatures must be one set."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from phantora_ns.config import load_gpu
from phantora_ns.launch.machine.installation import find_kernel_info, find_torch

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("leading", HERE / "leading.py")
leading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(leading)


@pytest.fixture(scope="module")
def common(tmp_path_factory, built_library):
    """What both kinds of rank share of their environment."""
    folder = tmp_path_factory.mktemp("common")
    names = folder / "names"
    names.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (names / name).symlink_to(built_library)
    info = find_kernel_info(find_torch(sys.executable), 90, folder)
    return {
        **leading.base_environment(),
        "LD_LIBRARY_PATH": str(names),
        "TRITON_LIBCUDA_PATH": str(names),
        "PHANTORA_KERNEL_INFO": str(info or ""),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def own_caches(folder):
    """Triton's autotuning launches kernels, unless a cache knows the winner: nobody may profit from
    another's."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def run(environment, *arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [("step", "embedding", "copies"), ("convolution",), ("triton",)],
    ids=lambda parts: parts[0],
)
def test_a_leader_measures_what_a_simulated_rank_asks_for(tmp_path, common, built_library, parts):
    gpu, values = load_gpu("h200"), str(built_library.parent)
    above, below, alone = (
        leading.run_dir(tmp_path / name, gpu) for name in ("above", "below", "alone")
    )
    job = [HERE / "jobs" / "operators.py", *parts]
    leader = {
        **common,
        **own_caches(tmp_path / "leader"),
        "LD_PRELOAD": f"{built_library.parent / 'libphantora-leader.so'} {built_library}",
        "PHANTORA_CUPTI": str(leading.build_fake(tmp_path)),
        "PHANTORA_RUN_DIR": str(below),
        "PHANTORA_LEAD_RUN_DIR": str(above),
        "PHANTORA_LEAD_VALUES_LIB": values,
        "FAKE_CUPTI_LOG": os.devnull,
    }
    with leading.LeadersHub(above) as hub, leading.LeadersHub(below, duration_ns=7000):
        run(leader, *job)
    with leading.LeadersHub(alone) as other:
        simulated = {
            "LD_PRELOAD": str(built_library),
            "PHANTORA_RUN_DIR": str(alone),
            "PHANTORA_VALUES_LIB": values,
        }
        run({**common, **own_caches(tmp_path / "alone"), **simulated}, *job)
    measured, asked = set(hub.measured()), leading.looked_up(other)
    assert len(asked) > 10
    assert not [msgpack.unpackb(key) for key in measured ^ asked]
