"""The signature key against the published hash and hand-written bytes: ranks in C compute the
same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora_ns.kernels import signature
from phantora_ns.protocol import SignatureKind


def test_canonical_bytes_are_the_shortest_msgpack():
    assert signature.encode(SignatureKind.MEMORY, [0, 256, 1, 2]) == bytes.fromhex(
        "92 03 94 00 cd0100 01 02"
    )
    assert signature.encode(SignatureKind.CALL, ["ab", [-1, 70000]]) == bytes.fromhex(
        "92 04 92 a26162 92 ff ce00011170"
    )
    assert signature.encode(0, [b"\x01"]) == bytes.fromhex("92 00 91 c40101")


@pytest.mark.parametrize(
    ("text", "digest"),
    [(b"", 0xCBF29CE484222325), (b"a", 0xAF63DC4C8601EC8C), (b"foobar", 0x85944171F73967E8)],
)
def test_hash_is_fnv_1a(text, digest):
    """Test vectors of draft-eastlake-fnv, appendix C."""
    assert signature.fnv1a64(text) == digest


numbers = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
fields = st.lists(numbers | st.text(max_size=9) | st.binary(max_size=9), max_size=12)


@given(st.integers(0, 4), fields)
def test_round_trip(kind, values):
    data = signature.encode(kind, values)
    assert signature.decode(data) == (kind, values)
    assert 0 < signature.key(kind, values) < 1 << 64


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data):
    try:
        kind, values = signature.decode(data)
    except signature.SignatureError:
        return
    assert isinstance(kind, int) and isinstance(values, list)


def test_launches_that_differ_in_identity_share_a_launch_key():
    def launch(identity):
        return signature.key(
            0, signature.launch_fields(["k", 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, identity])
        )

    assert launch(b"\x01") == launch(b"\x02") == launch(b"")
    assert launch(b"") != signature.key(0, ["k", 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, b""])


def test_description_names_what_it_can():
    assert signature.describe(3, [0, 5, 1, 2]) == "copy 5 bytes pinned -> device"
    assert signature.describe(1, [0, 1, 0, 2, 3, 4, 1, 14, 14, 14, 14, 68, 1, 4, 4, 2]).startswith(
        "gemm TN 2x3x4 batch 1"
    )
    assert "k <<<(1,2,3), (4,5,6), 7>>>" in signature.describe(
        0, ["k", 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, b""]
    )
    assert signature.describe(0, None) == "kernel None"
    assert signature.describe(99, []) == "kind 99 []"
