"""Why it exists: a few tests know what one release of PyTorch says or does. They choose by the release
that the tests run under, and say why it differs."""

import sys

import pytest

from phantora_ns.launch.machine.installation import find_torch
from phantora_ns.launch.machine.software import read_software


def torch_release():
    """(2, 15) for torch 2.15.0."""
    found = find_torch(sys.executable)
    assert found is not None, "no torch beside this Python"
    return tuple(map(int, read_software(found).torch.split(".")[:2]))


measured_under_2_11 = pytest.mark.skipif(
    torch_release() != (2, 11),
    reason="measured under torch 2.11.0: another release launches other kernels and allocates other "
    "sizes in another order",
)
