"""The README's picture of a page: `python -m bench.page.picture run.html docs/images/page.png`.

Rule: the page is drawn as it is, by headless Chromium. What does not fit on a first screen is hidden, and nothing
is changed. README.md of this folder has the job of the picture.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.page.run import BROWSERS

WIDTH, HEIGHT = 1180, 1230
HIDDEN = """<style>#fit, #speed, .tools, nav, .controls, details, section > p.soft { display: none }
h2 { margin-top: 1.6rem }</style></head>"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("no Chromium; apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        shown = Path(folder) / "page.html"
        shown.write_text(options.page.read_text().replace("</head>", HIDDEN, 1))
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}"]
        command += ["--virtual-time-budget=20000", f"--screenshot={options.picture.resolve()}"]
        subprocess.run([*command, shown.as_uri()], check=True, capture_output=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
