"""Why it exists: no bytes may make a parser in C read or write beyond them, overflow, or hang. A few
seconds here, from the inputs of corpus/ (parsers.py); an hour every night."""

import os
import random

import pytest

from tests.fuzz.parsers import PARSERS, Parser, corpus

NIGHT_S = 3600


@pytest.mark.parametrize("name", PARSERS)
def test_no_input_breaks_a_parser(tmp_path, name):
    found = Parser(name, tmp_path).run(corpus(name), 1, 20_000, 60)
    assert found.crash is None, f"{found.crash[0].hex()}\n{found.crash[1]}"
    assert found.places > 40 and found.inputs > 3, "the parser is not reached"


def test_a_defect_behind_several_checks_is_found(tmp_path):
    found = Parser("planted", tmp_path).run([b"P-----"], 1, 10**7, 120)
    assert found.crash is not None
    data, said = found.crash
    assert data[:4] == b"P\x7fN\xd1" and "planted.c" in said


@pytest.mark.nightly
@pytest.mark.timeout(NIGHT_S + 600)
def test_an_hour_of_inputs(tmp_path):
    seed = int(os.environ.get("CAMPAIGN_SEED") or random.randrange(10**6))
    print(f"seed {seed}: python -m tests.fuzz.parsers --seed {seed} repeats this")
    wrong = []
    for name in PARSERS:
        found = Parser(name, tmp_path).run(corpus(name), seed, 2**63, NIGHT_S // len(PARSERS))
        print(f"{name}: {found}")
        if found.crash is not None:
            wrong.append(f"{name}: {found.crash[0].hex()}\n{found.crash[1]}")
    assert not wrong, "\n".join(wrong)
