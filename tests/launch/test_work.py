"""Why it exists: what a user says of a step's work is computed exactly, or refused in one line."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.launch.command.work import Work, parse_model_flop, parse_work
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


factors = st.integers(1, 10**6).map(str) | st.floats(1e-3, 1e15).map(repr)
products = st.lists(factors, min_size=1, max_size=4).map(" * ".join)


@given(st.lists(products, min_size=1, max_size=4), st.sampled_from(["+", " + "]))
def test_model_flop_is_what_python_makes_of_it(terms, plus):
    """Exponents with a sign (1e+20) too, which Python writes."""
    text = plus.join(terms)
    assert parse_model_flop(text) == pytest.approx(eval(text), rel=1e-12)


def test_model_flop_of_a_real_model():
    """Llama 3 8B: six a parameter and token, and attention as PaLM's appendix B counts it."""
    tokens = 16 * 8192
    text = "6 * 8.03e9 * 16*8192 + 12*32*32*128*8192 * 16*8192"
    assert parse_model_flop(text) == (6 * 8_030_000_000 + 12 * 32 * 32 * 128 * 8192) * tokens
    assert parse_model_flop("8e+9") == parse_model_flop("+".join(["4E+9"] * 2)) == 8e9
    assert parse_model_flop(str(6 * 8.03e20)) == 6 * 8.03e20  # as phantora_ns.run gives a number


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "nan", "inf", "1e999", "1e308+1e308", "1e200*1e200+1", "+", "1+", "2**3", "6*N", "8 TFLOP"]
    + ["(6*8e9) * 4", "__import__('os')", "1 2"],
)  # fmt: skip
def test_what_is_no_flop_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match="^--model-flop: .* write it as '6 . 8.03e9 .*") as found:
        parse_model_flop(text)
    assert "\n" not in str(found.value)
