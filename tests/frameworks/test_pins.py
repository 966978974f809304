"""Why it exists: what `make frameworks` installs must fit the torch that is there, and must be what
the other tests of this folder ran with."""

import importlib.metadata
import importlib.util
import re

import pytest

PIN = re.compile(r"^([A-Za-z0-9_-]+)==(\S+)$", re.M)


@pytest.fixture(scope="module")
def pins(root):
    spec = importlib.util.spec_from_file_location("pins", root / "examples/frameworks/pins.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chosen(pins, torch):
    arguments, note = pins.pip_arguments(torch, sorted(pins.HERE.glob("torch-*.txt")))
    return arguments, note


@pytest.mark.parametrize(
    "torch, titan, vision",
    [
        ("2.11.0", "torchtitan==0.2.2", "torchvision==0.26.0"),
        ("2.15.0+cu132", "torchtitan==0.3.0", "torchvision==0.29.2"),
        ("2.9.1", "torchtitan==0.2.2", "torchvision"),
        ("2.12.1", "torchtitan==0.2.2", "torchvision"),
        ("2.16.0", "torchtitan==0.3.0", "torchvision"),
    ],
)
def test_the_installed_torch_chooses(pins, torch, titan, vision):
    arguments, note = chosen(pins, torch)
    assert f"torch=={torch}" in arguments, "or pip would install another torch"
    assert titan in arguments and vision in arguments
    tested = "==" in vision
    assert (note is None) == tested and (tested or torch in note)


def test_one_framework_alone_brings_no_other(pins):
    files = sorted(pins.HERE.glob("torch-*.txt"))
    arguments, _ = pins.pip_arguments("2.11.0", files, "torchtitan")
    assert arguments[1] == "-c" and {"torch==2.11.0", "torchtitan==0.2.2"} < set(arguments)
    assert "torchao==0.18.0" in arguments and not any("torchvision" in one for one in arguments)
    arguments, _ = pins.pip_arguments("2.15.0", files, "deepspeed")
    assert [one for one in arguments if "==" in one] == ["torch==2.15.0", "deepspeed==0.19.8"]
    with pytest.raises(LookupError, match="nothing is none of the frameworks"):
        pins.pip_arguments("2.15.0", files, "nothing")


def test_what_is_installed_is_what_is_pinned(pins):
    torch = importlib.metadata.version("torch")
    arguments, note = chosen(pins, torch)
    if note:
        pytest.skip(note)
    wanted = dict(PIN.findall("\n".join(arguments)))
    wanted |= dict(PIN.findall((pins.HERE / "requirements.txt").read_text()))
    del wanted["torch"]
    found = {name: importlib.metadata.version(name) for name in wanted}
    assert len(found) > 20 and found == wanted
