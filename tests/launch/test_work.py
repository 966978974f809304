"""Why it exists: what a user says of a step's work is multiplied out exactly, or refused in one line."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.launch.command.work import Work, parse_work
from phantora_ns.launch.errors import UsageError


@given(st.lists(st.integers(1, 8000), min_size=1, max_size=4), st.sampled_from(["*", " * "]))
def test_factors_are_multiplied(factors, times):
    text = times.join(map(str, factors)) + " tokens"
    assert parse_work(text) == Work(float(math.prod(factors)), "tokens")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tokens",
        "16",
        "16*8192",
        "0 tokens",
        "-1 tokens",
        "1e999 tokens",
        "a*2 tokens",
        "1 2 tokens",
    ],
)
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(UsageError, match="--work: .* write it as '16.8192 tokens'"):
        parse_work(text)
