"""Why it exists: the tutorial shows a script and its output. The script must be the one in
examples/tutorial, and it must run."""

import pytest


def test_the_tutorial_shows_the_script(root):
    script = (root / "examples/tutorial/train.py").read_text()
    assert f"```python\n{script}```" in (root / "docs/tutorial.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_script_runs(phantora, root, parallel):
    done = phantora(
        "--quiet", "torchrun", "--nproc-per-node", 2, root / "examples/tutorial/train.py",
        "--parallel", parallel, "--width", 256, "--layers", 2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" GiB") == 6
