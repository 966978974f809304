"""Why it exists: the Makefile must know where this Python's torch keeps its headers, without the
seconds `import torch` takes.

Prints two make variables; exits with status 1 when there is no torch, or one without headers.
"""

import importlib.util
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
print("TORCH_INCLUDES =", *(f"-isystem {path}" for path in headers))
print("TORCH_LIB =", root / "lib")
