"""Why it exists: the example must run in every mode on one node, and say sane things. tests/smoke
runs it on two."""

import re

import pytest

LINE = re.compile(
    r"step +(\d+) +([\d.]+) ms +(\d+) tokens/s/GPU +MFU +([\d.]+)% +peak +([\d.]+) GiB +loss not computed$"
)


def steps(done, count):
    """The log's figures, one tuple per step: ms, tokens/s/GPU, MFU in %, peak GiB."""
    assert done.returncode == 0, done.stderr
    found = [
        tuple(map(float, match.groups()))
        for match in map(LINE.match, done.stdout.splitlines())
        if match
    ]
    assert [line[0] for line in found] == list(range(1, count + 1)), done.stdout
    for _, milliseconds, rate, mfu, peak in found:
        assert milliseconds > 0 and rate > 0 and 0 <= mfu < 100 and 0 < peak < 141
    return [line[1:] for line in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "extra"),
    [
        # DDP and FSDP alone: test_tutorial.py
        ("tp", ()),
        ("fsdp_tp", ("--ac",)),
        # all, and the other way round, every night
        *(
            pytest.param(mode, extra, marks=pytest.mark.nightly)
            for mode, extra in (
                ("ddp", ()),
                ("ddp", ("--ac",)),
                ("fsdp", ()),
                ("fsdp", ("--ac",)),
                ("tp", ("--ac",)),
                ("fsdp_tp", ()),
            )
        ),
    ],
)
def test_every_mode_on_one_node(phantora, root, mode, extra):
    done = phantora(
        "--quiet",
        "torchrun",
        "--nproc-per-node",
        4,
        root / "examples/train_llama.py",
        "--mode",
        mode,
        "--size",
        "160m",
        "--layers",
        2,
        "--seq",
        512,
        "--steps",
        3,
        *extra,
    )
    first, *others = steps(done, 3)
    assert others[-1][3] >= first[3] * 0.99  # optimizer state comes with the first step and stays
    assert "4 x NVIDIA H200" in done.stdout


@pytest.mark.nightly
def test_recomputation_trades_time_for_memory(phantora, root):
    def last(*extra):
        return steps(
            phantora(
                "--quiet",
                "--host-time",
                "none",
                "torchrun",
                "--nproc-per-node",
                2,
                root / "examples/train_llama.py",
                "--size",
                "1b",
                "--layers",
                4,
                "--seq",
                8192,
                "--steps",
                2,
                *extra,
            ),
            2,
        )[-1]

    plain, recomputed = last(), last("--ac")
    assert recomputed[3] < plain[3] and recomputed[0] > plain[0]


@pytest.mark.slow
def test_a_model_too_large_for_the_gpu_runs_out_of_memory(phantora, root):
    done = phantora(
        "--quiet",
        "torchrun",
        "--nproc-per-node",
        2,
        root / "examples/train_llama.py",
        "--mode",
        "ddp",
        "--size",
        "13b",
        "--mbs",
        16,
        "--steps",
        1,
    )
    assert done.returncode != 0
    assert "torch.OutOfMemoryError: CUDA out of memory" in done.stderr
