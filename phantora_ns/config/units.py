"""Quantities with their unit in the text: times, sizes, rates, shares.

Why it exists: nobody has to guess between bits and bytes. Rule: a number without a unit is an
error, never a default. Decimal prefixes (kB, MB, GB) are powers of ten and binary ones (KiB, MiB,
GiB) powers of two, as IEC 80000-13 defines them. Bits are always written "bit";
`b` never means bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z%/]*)\s*\Z")

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_TIME_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_SIZE = {prefix + "B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_RATE = {f"{prefix}B/s": factor * 1e-9 for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_RATE |= {f"{prefix}bit/s": factor * 1e-9 / 8 for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_FLOPS = {f"{prefix}FLOP/s": factor * 1e-9 for prefix, factor in _DECIMAL.items()}
_FREQUENCY = {f"{prefix}Hz": factor for prefix, factor in _DECIMAL.items()}
_WATTS = {f"{prefix}W": factor for prefix, factor in _DECIMAL.items()}
_PICOJOULES = {"pJ/FLOP": 1.0, "nJ/FLOP": 1e3}
_NANOJOULES = {"pJ/B": 1e-3, "nJ/B": 1.0}


LEAST_BYTES_PER_NS = 1e-6
"""1 kB/s. At a lower rate, the end of a transfer would be too far away to be a time."""
MOST_BYTES_PER_NS = 1e9


class UnitError(ValueError):
    """A text is not a quantity of the expected kind; the message gives an example of one."""


def _parse(
    text: object, units: Mapping[str, float], kind: str, example: str, most: float = 1e18
) -> float:
    if not isinstance(text, str):
        raise UnitError(
            f'{text!r} is not {kind}; write it with its unit, in quotes, such as "{example}"'
        )
    match = _QUANTITY.match(text)
    if match is None:
        raise UnitError(f'{text!r} is not {kind}; write it as "{example}"')
    number, unit = match.groups()
    if not unit:
        raise UnitError(f'{text!r} has no unit; write it as "{example}"')
    if unit not in units:
        raise UnitError(f'{text!r}: unknown unit {unit!r} for {kind}; write it as "{example}"')
    value = float(number) * units[unit]
    if not abs(value) <= most:
        raise UnitError(f'{text!r} is beyond what can be simulated; write it as "{example}"')
    return value


def time_ns(text: object) -> int:
    """ "2 us" -> 2000. Not negative. Raises UnitError."""
    value = _parse(text, _TIME_NS, "a time", "2 us")
    if value < 0:
        raise UnitError(f'{text!r} is negative; a time is zero or more, such as "2 us"')
    return round(value)


def size_bytes(text: object) -> int:
    """ "80 GiB" -> 85899345920; "141 GB" -> 141000000000. Not negative. Raises UnitError."""
    value = _parse(text, _SIZE, "a size", "80 GiB")
    if value < 0:
        raise UnitError(f'{text!r} is negative; a size is zero or more, such as "80 GiB"')
    return round(value)


def bytes_per_ns(text: object) -> float:
    """ "400 Gbit/s" -> 50.0; "450 GB/s" -> 450.0 (bytes per nanosecond equal GB/s). Positive.
    Raises UnitError."""
    value = _parse(text, _RATE, "a bandwidth", "400 Gbit/s", MOST_BYTES_PER_NS)
    if value <= 0:
        raise UnitError(
            f'{text!r} is not positive; a bandwidth is more than zero, such as "400 Gbit/s"'
        )
    if value < LEAST_BYTES_PER_NS:
        raise UnitError(f'{text!r} is less than 1 kB/s; write it as "400 Gbit/s"')
    return value


def flop_per_ns(text: object) -> float:
    """ "989 TFLOP/s" -> 989000.0. Positive. Raises UnitError."""
    value = _parse(text, _FLOPS, "a rate of arithmetic", "989 TFLOP/s")
    if value <= 0:
        raise UnitError(f'{text!r} is not positive; write it as "989 TFLOP/s"')
    return value


def hertz(text: object) -> float:
    """ "1.98 GHz" -> 1.98e9. Positive. Raises UnitError."""
    value = _parse(text, _FREQUENCY, "a frequency", "1.98 GHz")
    if value <= 0:
        raise UnitError(f'{text!r} is not positive; write it as "1.98 GHz"')
    return value


def fraction(text: object) -> float:
    """ "50%" -> 0.5. Not negative. Raises UnitError."""
    value = _parse(text, {"%": 0.01}, "a share", "50%")
    if value < 0:
        raise UnitError(f'{text!r} is negative; a share is zero or more, such as "50%"')
    return value


def watts(text: object) -> float:
    """ "690 W" -> 690.0. Not negative. Raises UnitError."""
    return _at_least_zero(text, _WATTS, "a power", "690 W")


def picojoules_per_flop(text: object) -> float:
    """ "0.95 pJ/FLOP" -> 0.95. Not negative. Raises UnitError."""
    return _at_least_zero(text, _PICOJOULES, "an energy per FLOP", "0.95 pJ/FLOP")


def nanojoules_per_byte(text: object) -> float:
    """ "0.6 nJ/B" -> 0.6. Not negative. Raises UnitError."""
    return _at_least_zero(text, _NANOJOULES, "an energy per byte", "0.6 nJ/B")


def _at_least_zero(text: object, units: Mapping[str, float], kind: str, example: str) -> float:
    value = _parse(text, units, kind, example)
    if value < 0:
        raise UnitError(f'{text!r} is negative; write it as "{example}"')
    return value
