"""Why it exists: a checkpoint of a simulated model is zeros, and must not fill the disk; and a file
must hold what was written, whatever was written."""

import json
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
KIB = 1 << 10
pieces = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 7]),
        st.sampled_from([0, 1, 4095, 64 * KIB - 1, 64 * KIB, 200 * KIB, 1024 * KIB, 1500 * KIB]),
    ),
    max_size=4,
)
writes = st.lists(
    st.tuples(
        st.sampled_from(["write", "pwrite", "writev", "append"]),
        st.sampled_from([0, 1, 4096, 700 * KIB, 3000 * KIB]),
        pieces,
    ),
    max_size=5,
)


def preloaded(library, *arguments, given=None, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "LD_PRELOAD": str(library), **environment},
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(files=st.lists(writes, min_size=20, max_size=30))
def test_a_file_holds_what_was_written(built_library, tmp_path, files):
    script, path = HERE / "write_file.py", tmp_path / "file"
    assert preloaded(built_library, script, path, given=json.dumps(files)) == "OK\n"


def test_checkpoints_of_a_gpu_s_zeros_take_no_disk(phantora, tmp_path):
    done = phantora("--quiet", sys.executable, HERE / "checkpoints.py", tmp_path)
    assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    large = [path for path in files if path.stat().st_size > 256 << 20]
    assert len(large) == 3, files
    assert sum(path.stat().st_blocks * 512 for path in files) < 8 << 20


CLUSTER = """
gpu = "h200"
[server]
storage_bandwidth = "0.5 GB/s"
[network]
kind = "none"
"""


def test_storage_takes_the_time_that_the_cluster_says(phantora, tmp_path):
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    job = (
        "import os, time, torch; torch.cuda.init(); torch.ones(1, device='cuda')\n"
        "file = os.open('file', os.O_WRONLY | os.O_CREAT)\n"
        "for data in bytes(100_000_000), b'x' * 50_000_000:\n"
        "    begin = time.perf_counter(); os.write(file, data)\n"
        "    print(round(time.perf_counter() - begin, 2))\n"
    )
    done = phantora(
        *("--quiet", "--host-time", "none", "--cluster", tmp_path / "cluster.toml"),
        *("--nnodes", 1, "--gpus-per-node", 1, "--", sys.executable, "-c", job),
        cwd=tmp_path,
        env={"PYTHONPATH": str(HERE.parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.2", "0.1"]


def test_errors_are_the_kernel_s(built_library, tmp_path):
    out = preloaded(
        built_library,
        "-c",
        "import errno, os, sys\n"
        "zeros = bytes(2 << 20)\n"
        "read, write = os.pipe(); os.set_blocking(write, False)\n"
        "path = sys.argv[1]; open(path, 'w').close()\n"
        "for file in os.open(path, os.O_RDONLY), 999, os.open('/dev/full', os.O_WRONLY):\n"
        "    try: os.write(file, zeros)\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
        "print(0 < os.write(write, zeros) < len(zeros))",
        tmp_path / "file",
    )
    assert out.split() == ["EBADF", "EBADF", "ENOSPC", "True"]
