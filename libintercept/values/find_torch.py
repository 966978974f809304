"""Why it exists: the Makefile must know where this Python's torch keeps its headers, without the
seconds `import torch` takes.

Prints make variables; exits with status 1 when there is no torch, or one without headers.
"""

import importlib.util
import re
import sys
from pathlib import Path

spec = importlib.util.find_spec("torch")
if spec is None or spec.origin is None:
    sys.exit(1)
root = Path(spec.origin).parent
headers = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include"]
if not (headers[0] / "ATen" / "record_function.h").exists():
    sys.exit(1)
version = next(
    (
        line
        for line in (root / "version.py").read_text().splitlines()
        if line.startswith("__version__")
    ),
    "",
)
print(f"# {version}")  # an upgrade in place changes this line, and with it what make compiles again
# what ATen's own check asks for: 201703, 202002
asked = re.search(r"__cplusplus < (20\d{2})", (headers[0] / "ATen" / "ATen.h").read_text())
print("TORCH_STD =", f"c++{asked[1][2:]}" if asked else "c++20")
print("TORCH_INCLUDES =", *(f"-isystem {path}" for path in headers))
print("TORCH_LIB =", root / "lib")
