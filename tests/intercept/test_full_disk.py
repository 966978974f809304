"""Why it exists: memory that is shared through a file needs real blocks. On a sparse file, a full disk
kills whoever writes, without a word."""

import signal
import subprocess

FULL = """
mount -t tmpfs -o size=64k none "$PHANTORA_RUN_DIR/ranks" || exit 99
dd if=/dev/zero of="$PHANTORA_RUN_DIR/ranks/filler" bs=4k 2>/dev/null
LD_PRELOAD=$LIBRARY exec "$0" plain
"""


def test_a_full_disk_under_the_rank_statistics_is_said(program, environment):
    variables = {**environment, "LIBRARY": environment["LD_PRELOAD"]}
    del variables["LD_PRELOAD"]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", FULL, program("memory")],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 70, (done.returncode, done.stderr)
    assert "No space left on device" in done.stderr and "make room" in done.stderr


# A run directory of 4 MiB in which the hub of the real one answers.
SMALL = """
set -e
mkdir "$PHANTORA_RUN_DIR/small"
mount -t tmpfs -o size=4m none "$PHANTORA_RUN_DIR/small"
cd "$PHANTORA_RUN_DIR"
mkdir small/ranks; mount --bind ranks small/ranks
cp device.conf small/
touch small/hub.sock; mount --bind hub.sock small/hub.sock
export PHANTORA_RUN_DIR="$PHANTORA_RUN_DIR/small"
LD_PRELOAD=$LIBRARY exec "$0" plain
"""


def test_a_full_disk_under_shared_device_memory_is_said(program, environment, hub):
    """The process ends as by a plain SIGBUS, so that its agent tells of one."""
    variables = {**environment, "LIBRARY": environment["LD_PRELOAD"]}
    del variables["LD_PRELOAD"]
    # the address sanitizer ends a process otherwise
    variables["ASAN_OPTIONS"] = f"{variables.get('ASAN_OPTIONS', '')}:handle_sigbus=0"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", SMALL, program("shared")],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "exported 1\n", done.stderr
    assert done.returncode == -signal.SIGBUS
    (line,) = done.stderr.splitlines()
    assert "No space left" in line and "make room" in line
