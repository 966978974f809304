"""What the launcher writes to phantora-sandbox, and what it reads from it."""

import pytest

from phantora_ns.launch.errors import LaunchError
from phantora_ns.launch.machine.sandbox import Message, SandboxSpec, parse_message


@pytest.mark.parametrize(
    "data, message",
    [
        (b"up", Message("up")),
        (b"step /dev/shm", Message("step", text="/dev/shm")),
        (b"exit 3 7", Message("exit", 3, 7)),
        (b"signal 0 9", Message("signal", 0, 9)),
        (b"gone 12", Message("gone", 12)),
        (b"failed - a: b; c", Message("failed", None, text="a: b; c")),
        (b"failed 2 a: b; c", Message("failed", 2, text="a: b; c")),
        (b"noexec 1 cannot run x", Message("noexec", 1, text="cannot run x")),
    ],
)
def test_messages(data, message):
    assert parse_message(data) == message


@pytest.mark.parametrize("data", [b"", b"exit", b"exit x 1", b"gone -", b"hello 1 2", b"\xff\xfe"])
def test_messages_of_another_version(data):
    with pytest.raises(LaunchError, match="make build"):
        parse_message(data)


def test_spec_is_one_record_per_line():
    spec = SandboxSpec(
        program="/bin/x",
        argv=["x", "a\nb\\"],
        cwd="/",
        env={"A": "1\n2"},
        node_envs=[{"N": "0"}, {}],
        isolated=True,
    )
    lines = spec.encode().decode().splitlines()
    assert lines[0] == "phantora-sandbox 1" and "arg a\\nb\\\\" in lines and "env A=1\\n2" in lines
    assert lines[-3:] == ["node node-0 10.77.0.1/16", "env N=0", "node node-1 10.77.0.2/16"]
