"""Why it exists: a leader needs a GPU, and machines of a campaign have none. Here the GPU is an emulated one: an outer
run of phantora-ns waits, and what starts in its environment finds an H200 and a fake CUPTI
(tests/leader/fake_cupti.c)."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
WAIT = 'env -0 > "$0.part" && mv "$0.part" "$0" && exec sleep infinity'


@contextlib.contextmanager
def one_gpu(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the environment variables with which a process finds one (emulated) GPU. `folder`: an existing folder
    for the fake CUPTI and for what the outer run tells."""
    spec = importlib.util.spec_from_file_location("leading", ROOT / "tests/leader/leading.py")
    assert spec is not None and spec.loader is not None
    leading = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(leading)
    fake, told = leading.build_fake(folder), folder / "environment"
    told.unlink(missing_ok=True)
    launcher = [sys.executable, "-m", "phantora_ns", "--quiet", "--isolation", "none"]
    launcher += ["--leaders", "none", "--gpus-per-node", "1"]
    outer = subprocess.Popen(
        [*launcher, "--", "sh", "-c", WAIT, str(told)],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not told.exists():
            assert outer.poll() is None and time.monotonic() < deadline, "no emulated GPU"
            time.sleep(0.05)
        pairs = os.fsdecode(told.read_bytes()).split("\0")
        found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        found["LD_PRELOAD"] = f"{fake}:{found['LD_PRELOAD']}"
        yield {**found, "PHANTORA_CUPTI": str(fake)}
    finally:
        outer.send_signal(signal.SIGTERM)
        outer.wait(PATIENCE_S)
