"""Numbers in few digits and without an exponent.

Why it exists: Python's `g` writes 1,036 in three digits as 1.04e+03, which nobody reads as 1,036.
"""

from __future__ import annotations


def digits(value: float, many: int) -> str:
    """At least `many` digits of the value; all of those before the point, with commas between thousands if they
    are more.

    >>> digits(84.28, 3), digits(1036.2, 3), digits(1036.2, 4), digits(85412.3, 4)
    ('84.3', '1,036', '1036', '85,412')
    """
    text = f"{value:.{many}g}"
    return f"{value:,.0f}" if "e+" in text else text
