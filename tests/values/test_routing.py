"""Why it exists: the choices of --values balanced must be even and consistent, on one rank and
across ranks. The report must distinguish a job that read undefined values from one that did not."""

import json
import sys

import pytest

import tests.values.routing as routing
from tests.values.test_values import HERE, outcome

TWO_RANKS = ("torchrun", "--nnodes", 1, "--nproc-per-node", 2, HERE / "routing.py")


@pytest.fixture(scope="module")
def routing_outcome(phantora):
    return outcome(phantora("--quiet", *TWO_RANKS), "ROUTING")


@pytest.mark.slow
@pytest.mark.parametrize("name", routing.CASES)
def test_choices_obey_the_laws_that_jobs_rely_on(routing_outcome, name):
    assert routing_outcome[name] == []


@pytest.mark.nightly
def test_zeros_make_no_choice(phantora):
    """The same laws cannot hold where nothing is chosen: this also shows that the cases can
    fail."""
    wrong = outcome(phantora("--quiet", "--values", "zeros", *TWO_RANKS), "ROUTING")
    failing = {name for name, found in wrong.items() if found}
    assert failing >= {
        "routes_are_even_and_counted",
        "masks_select_what_they_count",
        "one_of_many_takes_turns",
        "large_integers_have_the_cpus_bits",
    }
    assert not failing & {"known_scores_are_not_touched"}


@pytest.mark.parametrize(
    "how, unknown, chosen",
    [("known", 0, 0), ("unknown", 8, 0), pytest.param("chosen", 0, 1, marks=pytest.mark.nightly)],
)
def test_reads_of_undefined_values_are_counted(phantora, tmp_path, how, unknown, chosen):
    report = tmp_path / "report.json"
    done = phantora(
        "--report",
        report,
        "--nnodes",
        1,
        "--gpus-per-node",
        1,
        "--",
        sys.executable,
        HERE / "routing.py",
        how,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["values"] == {
        "policy": "balanced",
        "unknown_reads": unknown,
        "chosen": chosen,
        "replayed": 0,
        "repeated": 0,
        "hollow_bytes": 0,
    }
    assert ("results that are not computed here" in done.stderr) == (unknown > 0)
