"""Puts the page's content, its script, its style and the chart library into one file.

Why it exists: a page must open anywhere, years later, without network. So everything that it needs is
inside, and its content security policy lets it load nothing. The parts are in phantora_ns/data/page.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phantora_ns.page.words import LABELS

_PARTS = Path(__file__).resolve().parents[1] / "data" / "page"
_LIBRARY = "echarts/echarts.min.js"
RUN_SCRIPTS = ("format.js", "charts.js", "sections.js", "timeline.js", "main.js")
COMPARE_SCRIPTS = ("format.js", "charts.js", "compare.js")
SWEEP_SCRIPTS = ("format.js", "charts.js", "sweep.js")
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def render(content: Mapping[str, Any], title: str) -> str:
    """The page of one run. `content` as content.py makes it."""
    shown = {name: value for name, value in content.items() if name != "timeline"}
    return assemble(
        title, shown, content["timeline"], RUN_SCRIPTS, "page.html", _static(content["answers"])
    )


def render_comparison(comparison: Mapping[str, Any]) -> str:
    """The page of a comparison. `comparison` as compare.py makes it."""
    letters = " and ".join(run["name"] for run in comparison["runs"])
    return assemble(f"{letters} compared", comparison, None, COMPARE_SCRIPTS, "compare.html")


def render_sweep(sweep: Mapping[str, Any]) -> str:
    """The page of a sweep. `sweep` as sweep/table.py makes it."""
    return assemble(f"{sweep['title']}: a sweep", sweep, None, SWEEP_SCRIPTS, "sweep.html")


def embedded(text: str) -> Any:
    """The data in a page. Raises ValueError when it is none."""
    found = _DATA.search(text)
    if found is None:
        raise ValueError("no page of a run")
    return json.loads(found[1])


def _static(answers: Sequence[Mapping[str, str]]) -> str:
    """The answers as HTML for a reader without JavaScript."""
    return "".join(
        f"<h2>{html.escape(one['question'])}</h2>\n<p><b>{html.escape(one['answer'])}.</b> "
        f"{html.escape(one['detail'])}</p>\n"
        for one in answers
    )


def assemble(
    title: str,
    data: Mapping[str, Any],
    packed: Any,
    scripts: Sequence[str],
    body: str,
    static: str = "",
) -> str:
    """The page with `body` and everything in it; `packed` is data for the script that is
    compressed. `static`: HTML that is shown where no script runs."""
    values = {
        "TITLE": html.escape(title),
        "STATIC": static,
        "STYLE": _part("page.css"),
        "FOOTER": "Made by phantora-ns. Charts by Apache ECharts (Apache-2.0).",
        "DATA": _inside_script(json.dumps(data, separators=(",", ":"))),
        "TIMELINE": _packed(packed),
        "LIBRARY": _part(_LIBRARY),
        "SCRIPT": f'"use strict";\nconst LABELS = {_inside_script(json.dumps(LABELS))};\n'
        + "\n".join(_part(name) for name in scripts),
    }
    text = _part("frame.html").replace("@BODY@", _part(body))
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _inside_script(text: str) -> str:
    """JSON that cannot end its own script element."""
    return text.replace("<", "\\u003c")


def _packed(value: Any) -> str:
    """Compressed JSON in base64. The same data give the same text: no time stamp is in it."""
    if value is None:
        return ""
    text = json.dumps(value, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
