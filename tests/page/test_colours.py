"""Why it exists: one man in twelve does not see all colours, and most printers have none. The colours of a chart
must differ there, too."""

import itertools
import re
from pathlib import Path

import pytest

CHARTS = Path(__file__).parents[2] / "phantora_ns" / "data" / "page" / "charts.js"
STYLE = CHARTS.with_name("page.css")
TOLD_APART = 10.0
"""CIE 1976 distance; 2.3 is what an eye just notices with both colours side by side."""
# What a colour looks like, in linear RGB: Machado, Oliveira and Fernandes 2009, "A physiologically-based model for
# simulation of color vision deficiency", severity 1.
VISIONS = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red cones": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green cones": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue cones": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "a print without colours": ((0.2126729, 0.7151522, 0.0721750),) * 3,
}
XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
"""From linear sRGB."""
WHITE = (0.95047, 1.0, 1.08883)


def palette(name):
    return re.findall(r"#[0-9a-f]{6}", re.search(rf"const {name} = (.*?);", CHARTS.read_text())[1])


def papers():
    """What lies behind charts: in light, in dark, and in print."""
    found = re.findall(r"--back: (#[0-9a-f]{3,6});", STYLE.read_text())
    return {"#" + one[1:] * (2 if len(one) == 4 else 1) for one in found}


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(colour, vision):
    """CIELAB of the colour as it is seen."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    seen = [min(1.0, max(0.0, c)) for c in times(VISIONS[vision], linear)]
    x, y, z = (
        t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116
        for t in (a / b for a, b in zip(times(XYZ, seen), WHITE, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(first, second, vision):
    pairs = zip(lab(first, vision), lab(second, vision), strict=True)
    return sum((a - b) ** 2 for a, b in pairs) ** 0.5


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize(
    ("name", "first"), [("COLD", 6), ("WARM", 5), ("MIXED", 5), ("GREY", 3), ("HOST", 2)]
)
def test_colours_of_a_chart_are_told_apart(name, first, vision):
    """The first ones all from each other, the rest from their neighbours: a chart seldom needs them. A page is printed
    in the colours of the light theme, which are those of the dark one."""
    colours = palette(name) + (palette("OTHERS") if name == "COLD" else [])
    assert len(colours) >= first
    pairs = [*itertools.combinations(colours[:first], 2), *itertools.pairwise(colours)]
    near = {pair: round(distance(*pair, vision), 1) for pair in pairs}
    assert min(near.values()) > TOLD_APART, near


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("name", ["COLD", "WARM", "MIXED", "GREY", "OTHERS", "HOST"])
def test_colours_of_a_chart_are_told_from_what_lies_behind_it(name, vision):
    assert {"#ffffff", "#14161a"} <= papers()
    near = {
        (one, paper): round(distance(one, paper, vision), 1)
        for one in palette(name)
        for paper in papers()
    }
    assert min(near.values()) > TOLD_APART, near


def test_the_distance_is_the_known_one():
    """Black and white are 100 apart, and red and green are near each other without green cones."""
    assert distance("#000000", "#ffffff", "all colours") == pytest.approx(100, abs=0.1)
    normal, blind = (distance("#cc0000", "#557700", v) for v in ("all colours", "no green cones"))
    assert normal > 90 and blind < 20
