"""The hub as the launcher starts it: ready, ended, or one line about why not."""

import json
import os
import signal
import subprocess
import sys

import pytest
from client import Client
from running import start_hub

from phantora_ns.config import load_cluster
from phantora_ns.config.description import write_cluster
from phantora_ns.protocol import KernelClass, Precision


def test_the_shipped_hub_starts_answers_and_ends(short_dir):
    hub = start_hub(short_dir / "run", main=("-m", "phantora_ns.hub"))
    try:
        client = Client(hub.run_dir)
        square = [0, 0, 0, 4096, 4096, 4096, 1, 14, 14, 14, 14, 68, 1, 4096, 4096, 4096]
        kind, _, duration_ns, source, drag_permille, work, works, flop = client.lookup(5, 1, square)
        # 137 GFLOP on an H200
        assert kind == 10 and 50_000 < duration_ns < 1_000_000 and drag_permille > 0
        # by the GEMM model, bound by arithmetic and a product, a fill and a kernel
        expected = 1 | KernelClass.GEMM << 8 | Precision.BF16 << 16
        assert (source, work, works, flop) == (3, expected, 2 | 1 << 8, 2 * 4096**3)
        client.bye()
        assert hub.stop()["bad_messages"] == 0
        assert not [line for line in hub.stderr.splitlines() if "Traceback" in line]
    finally:
        hub.process.kill()
        hub.process.communicate()


def test_a_low_limit_of_open_files_is_lifted(short_dir):
    """1,024, as most shells have, ends libzmq at 336 clients; here it is 64, and 20 would."""
    limited = ("sh", "-c", 'ulimit -S -n 64 && exec "$@"', "sh")
    hub = start_hub(short_dir / "run", main=("-m", "phantora_ns.hub"), under=limited)
    try:
        clients = [Client(hub.run_dir) for _ in range(40)]
        for client in clients:
            client.bye()
        assert len(hub.stop()["clients"]) == 40
    finally:
        hub.close()


def hub_on(path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "phantora_ns.hub", *map(str, path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=os.path.dirname(__file__) + "/../..",
    )


@pytest.mark.parametrize(
    "run,said",
    [(None, "run.json"), ("{", "Expecting"), ({"sync": "guess"}, "guess"),
     ({"databases": ["/nowhere.db"]}, "nowhere.db")],
)  # fmt: skip
def test_what_it_cannot_start_from_is_one_line(short_dir, run, said):
    if isinstance(run, dict):
        run = json.dumps({"databases": [], **run})
    if run is not None:
        (short_dir / "run.json").write_text(run)
    write_cluster(load_cluster("h200-rail", 1, 1), short_dir)
    refuses(short_dir, said)


@pytest.mark.parametrize("description, said", [(None, "cluster.json"), ("{}", "cluster.json.name")])
def test_it_needs_a_whole_description_of_the_cluster(short_dir, description, said):
    (short_dir / "run.json").write_text("{}")
    if description is not None:
        (short_dir / "cluster.json").write_text(description)
    refuses(short_dir, said)


def refuses(run_dir, said):
    ended = hub_on([run_dir])
    assert ended.returncode == 1 and ended.stdout == ""
    assert said in ended.stderr and len(ended.stderr.splitlines()) == 1


def test_it_wants_one_argument():
    ended = hub_on([])
    assert ended.returncode == 1 and ended.stderr.startswith("usage:")


def test_interrupting_it_counts_as_asking(hub):
    hub.process.send_signal(signal.SIGINT)
    hub.process.communicate(timeout=20)
    assert (
        hub.process.returncode == 0
        and json.loads((hub.run_dir / "hub.json").read_text())["clients"] == []
    )


def test_a_full_disk_at_the_end_is_one_line(hub):
    (hub.run_dir / "hub.partial").symlink_to("/dev/full")
    hub.process.send_signal(signal.SIGTERM)
    _, said = hub.process.communicate(timeout=20)
    assert hub.process.returncode == 1
    assert "No space left" in said and len(said.splitlines()) == 1
    assert not (hub.run_dir / "hub.json").exists()
