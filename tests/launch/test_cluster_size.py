"""Why it exists: a job that starts fewer workers than a server of fixed size has GPUs runs on such servers,
and no other error may give a job servers of another size."""

import errno
from pathlib import Path

import pytest

from phantora_ns.config import nccl, topologies_dir
from phantora_ns.launch.command.options import RunOptions
from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.run.run_request import build_request

JOB = ("torchrun", "--nproc-per-node", "2", "train.py")


@pytest.fixture
def refused(monkeypatch):
    """The next read of a file of that name fails; what was read before is forgotten."""

    def refuse(name):
        real, left = Path.open, [OSError(errno.EIO, "Input/output error")]

        def read(path, *arguments, **keywords):
            if path.name == name and left:
                raise left.pop()
            return real(path, *arguments, **keywords)

        nccl._content.cache_clear()
        monkeypatch.setattr(Path, "open", read)

    return refuse


def test_a_server_of_fixed_size_leaves_gpus_idle(tmp_path):
    fixed = tmp_path / "fixed.toml"
    text = (topologies_dir() / "h200-1x8.toml").read_text()
    fixed.write_text(f"gpus_per_node = 8\n{text}")
    assert build_request(JOB, RunOptions(cluster=fixed)).shape.gpus_per_node == 8


def test_another_server_has_as_many_gpus_as_workers():
    assert build_request(JOB, RunOptions()).shape.gpus_per_node == 2


@pytest.mark.parametrize("name", ["nccl.toml", "h200.toml", "h200-1x8.toml"])
def test_a_file_that_cannot_be_read_once_changes_no_size(refused, name):
    """The run had servers of eight GPUs instead of two."""
    refused(name)
    with pytest.raises(UsageError, match=rf"{name}: cannot be read: Input/output error"):
        build_request(JOB, RunOptions(cluster="h200-1x8"))
