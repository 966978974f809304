"""Why it exists: every test of the hub talks to a real one, in its own process and run directory;
this starts and ends it."""

import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from running import RunningHub, start_hub  # noqa: E402


@pytest.fixture(autouse=True)
def no_client_left():
    """Closes the clients that a test opened."""
    import client

    yield
    while client.opened:
        client.opened.pop().close()


@pytest.fixture
def short_dir():
    """A directory with a path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="ph-") as path:
        yield Path(path)


@pytest.fixture
def hub(short_dir):
    """A running hub with two servers of four GPUs."""
    running = start_hub(short_dir / "run")
    yield running
    running.close()


@pytest.fixture
def hub_of(short_dir):
    """Starts hubs with options of run.json: `hub_of(nodes=1, gpus_per_node=8)`."""
    started = []

    def start(**options) -> RunningHub:
        started.append(start_hub(short_dir / f"run{len(started)}", **options))
        return started[-1]

    yield start
    for running in started:
        running.close()
