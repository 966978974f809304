"""Why it exists: a script that raises on one rank must end the job with that script's message and torchrun's exit code."""
from tests.torch.outcome import JOBS, Outcome


def test_one_rank_raises(phantora, tmp_path):
    report = tmp_path / "report.json"
    done = phantora("--report", report, "torchrun", "--nnodes", 2, "--nproc-per-node", 2, JOBS / "raises.py")
    outcome = Outcome(done, 4)
    assert done.returncode == 1
    assert "ValueError: the job's own mistake" in done.stderr
    assert sorted(line["rank"] for line in outcome.lines("REACHED")) == [0, 1, 2, 3]
    assert {line["value"] for line in outcome.lines("REACHED")} == {4.0}
    assert outcome.lines("PASSED") == []
    assert '"failed_by": "job"' in report.read_text() and '"exit_code": 1' in report.read_text()
