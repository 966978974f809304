"""Reads a text file that may be compressed.

Why it exists: traces come as Kineto writes them (.json, .json.gz) and as the project keeps them
(.xz, which makes them half as large). Every reader must take them all and fail alike on a damaged
one.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from pathlib import Path

SUFFIXES = ("", ".gz", ".xz")


def read_text(path: Path | str) -> str:
    """The text of a file in UTF-8, decompressed when its name ends in .gz or .xz.

    Raises OSError when it cannot be read, and ValueError when it is damaged.
    """
    path = Path(path)
    content = path.read_bytes()
    try:
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        elif path.suffix == ".xz":
            content = lzma.decompress(content)
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"damaged: {error}") from error
    return content.decode("utf-8")


def existing(path: Path) -> Path | None:
    """`path`, or the compressed form of it that exists (`path` with .gz or .xz added), or None."""
    found = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return next((candidate for candidate in found if candidate.is_file()), None)
