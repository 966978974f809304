"""Why it exists: values that a leader's GPU computed must come back at the same replay keys of the
same job (--values replay): exactly for the rank that led, and those of a recorded rank for others;
beyond the last recorded occurrence from the first again. All of it is counted."""

import json
from pathlib import Path

import pytest

from tests.leader import leading
from tests.leader.jobs import steering

HERE = Path(__file__).resolve().parent
RECORDED_STEPS, REPLAYED_STEPS = 3, 4
ANSWERS = 2 * len(steering.SIZES) + 1  # of a rank and step: two choices of each size, and the loss


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "ranks, leaders", [(2, [0]), pytest.param(3, [0, 1], marks=pytest.mark.nightly)]
)
def test_recorded_values_are_replayed(phantora, tmp_path, ranks, leaders):
    values, report = tmp_path / "job.values", tmp_path / "report.json"
    job = ["torchrun", "--nproc-per-node", ranks, HERE / "jobs/steering.py"]
    done = leading.on_one_gpu(
        phantora,
        "profile",
        "--record",
        "values",
        "--leaders",
        ",".join(map(str, leaders)),
        "--isolation",
        "none",
        "-o",
        values,
        *job,
        env={"COMPUTED": "1", "OUT": str(tmp_path), "STEPS": str(RECORDED_STEPS)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert f"; in {values}; replay them: --values replay:{values}" in done.stderr

    done = phantora(
        "--values",
        f"replay:{values}",
        "--report",
        report,
        *job,
        env={"OUT": str(tmp_path), "STEPS": str(REPLAYED_STEPS)},
    )
    assert done.returncode == 0, done.stderr
    received = []
    for rank in range(ranks):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(told) == REPLAYED_STEPS
        received.append([step["received"] for step in told])
        for number, step in enumerate(told):
            routes, loss = steering.computed(
                number % RECORDED_STEPS, rank if rank in leaders else leaders[0]
            )
            assert step["routes"] == [route.tolist() for route, _ in routes]
            assert step["best"] == [best.tolist() for _, best in routes]
            assert step["loss"] == loss.item()
    tokens = [size[0] * size[2] for size in steering.SIZES]
    # what the job makes of them is computed, and fits together across ranks
    for step in range(REPLAYED_STEPS):
        sums = [
            sum(sum(received[rank][step][at]) for rank in range(ranks)) for at in range(len(tokens))
        ]
        for total, count, size in zip(sums, tokens, steering.SIZES, strict=True):
            assert total == ranks * count if size[1] % ranks == 0 else total <= ranks * count
    asked = ranks * REPLAYED_STEPS * ANSWERS
    assert json.loads(report.read_text())["values"] == {
        "policy": "replay",
        "unknown_reads": 0,
        "chosen": 0,
        "replayed": asked,
        "repeated": asked // REPLAYED_STEPS,
        "hollow_bytes": 0,
    }
    assert (
        f"{asked} values replayed, {asked // REPLAYED_STEPS} of them repeated beyond the recording"
        in done.stderr
    )


@pytest.mark.slow
def test_a_job_without_replay_keys_records_nothing(phantora, tmp_path):
    script = tmp_path / "steady.py"
    script.write_text("import torch\ntorch.ones(64, device='cuda').add_(1)\n")
    done = leading.on_one_gpu(
        phantora,
        "profile",
        "--record",
        "values",
        "--isolation",
        "none",
        "-o",
        tmp_path / "job.values",
        "torchrun",
        "--nproc-per-node",
        1,
        script,
    )
    assert (
        done.returncode == 70
        and "no values were recorded on rank 0: the job reads none, and none decides what it does"
        in done.stderr
    )
    assert not (tmp_path / "job.values").exists()
