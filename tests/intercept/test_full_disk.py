"""Why it exists: memory that is shared through a file needs real blocks. On a sparse file, a full disk
kills whoever writes, without a word."""

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
