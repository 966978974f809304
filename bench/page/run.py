"""How long the page of 32 ranks takes to open: `python -m bench.page.run [PAGE]` opens it in headless Chromium
several times, each in a new browser with an empty profile.

- start s: from the start of the browser's process until it answers.
- paint s: from the begin of the navigation until the page is on the screen, with its four answers.
- ready s: from the same moment until everything is there, the timeline unpacked.
- all s: from the start of the process until then, which is what a person waits who has no browser open.

Without PAGE it runs the job first (examples/tutorial/train.py on four servers), and keeps the page as --keep
says.

Rule: the page is opened as it is. The browser is asked by its own protocol (DevTools over a pipe), which works
beside the page's content security policy.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
JOB = "--cluster h200-rail torchrun --nnodes 4 --nproc-per-node 8 examples/tutorial/train.py --width 512"
READY = """Promise.all([
  new Promise((done) => {
    const tell = () => { // the element comes with the first bytes
      const state = document.documentElement?.dataset.state;
      if (state) done([state, performance.now()]);
    };
    new MutationObserver(tell).observe(document, { subtree: true, attributeFilter: ["data-state"] });
    tell();
  }),
  new Promise((done) => new PerformanceObserver((list) => list.getEntriesByName("first-contentful-paint")
    .forEach((entry) => done(entry.startTime))).observe({ type: "paint", buffered: true })),
])"""
"""State and moment of it, and the moment of the first paint: ms since the navigation began."""


class Browser:
    """Headless Chromium that is spoken to over a pipe."""

    def __init__(self, program, folder):
        """`folder`: its profile and home."""
        theirs, self._ours = os.pipe()
        self._answers, back = os.pipe()
        # the browser reads from descriptor 3 and writes to 4
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"]
        words += [f"--user-data-dir={folder}/profile", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{theirs} 4>&{back}', "sh", *words],
            pass_fds=(theirs, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": folder},
        )
        os.close(theirs)
        os.close(back)
        self._number, self._rest = 0, b""

    def ask(self, method, session=None, **parameters):
        """The result of a command. Raises RuntimeError with what the browser says is wrong."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(
            self._ours,
            json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0",
        )
        while True:
            while b"\0" not in self._rest:
                found = os.read(self._answers, 1 << 16)
                if not found:
                    raise RuntimeError("the browser has ended")
                self._rest += found
            one, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]

    def close(self):
        with contextlib.suppress(RuntimeError):
            self.ask("Browser.close")
        os.close(self._ours)
        self._process.wait()
        os.close(self._answers)


def opened(program, page):
    """Seconds: start, paint, ready. Raises RuntimeError when the page has an error."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        begin = time.perf_counter()
        browser = Browser(program, folder)
        try:
            target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
            session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)[
                "sessionId"
            ]
            started = time.perf_counter()
            browser.ask("Page.navigate", session, url=page.as_uri())
            (state, ready_ms), paint_ms = browser.ask(
                "Runtime.evaluate",
                session,
                expression=READY,
                awaitPromise=True,
                returnByValue=True,
            )["result"]["value"]
            end = time.perf_counter()
        finally:
            browser.close()
    if state != "ready":
        raise RuntimeError(f"the page is {state}")
    return {
        "start": started - begin,
        "paint": paint_ms / 1e3,
        "ready": max(ready_ms, paint_ms) / 1e3,
        "all": end - begin,
    }


def make(page):
    """Runs the job that the page is of."""
    command = [sys.executable, "-m", "phantora_ns.cli", "--quiet", "--warm-start", "auto"]
    subprocess.run(
        [*command, "--html", str(page), *JOB.split()],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--keep", type=Path, help="where the page of the job is to be written")
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("no Chromium; apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = (options.page or options.keep or Path(folder) / "page.html").resolve()
        if options.page is None:
            make(page)
        empty = Path(folder) / "empty.html"
        empty.write_text(
            "<!doctype html><title>empty</title>empty"
            '<script>document.documentElement.dataset.state = "ready"</script>'
        )
        said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip()
        cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
        print(f"{said}; {page.stat().st_size / 1e6:.1f} MB; {cores} cores; load before: {load:.1f}")
        print(
            f"{'':10}"
            + "".join(f"{name + ' s':>24}" for name in ("start", "paint", "ready", "all"))
        )
        for name, one in (("empty page", empty), ("the page", page)):
            opened(program, one)  # files are read from disk once
            runs = [opened(program, one) for _ in range(options.times)]
            cells = []
            for column in runs[0]:
                values = sorted(run[column] for run in runs)
                cells.append(
                    f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"
                )
            print(f"{name:10}" + "".join(f"{cell:>24}" for cell in cells))
        print(
            f"medians of {options.times}, least and most; load at the end: {os.getloadavg()[0]:.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
