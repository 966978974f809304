"""Why it exists: the mistakes that the fuzzer of files makes: in a value of JSON, in a line, in bytes. Each
changes content that may hold earlier mistakes."""

import copy
import json
import random
import re
import struct
from typing import Any

ODD: list[Any] = [None, True, "", " ", "x" * 5000, "\0", "-1", "nan", "1e400", [], {}, [[]], {"a": {}}, 0, -1, 1, 2**31,
                  2**63, 2**64, 10**400, -0.0, 1e-320, 1e308, float("inf"), float("nan")]  # fmt: skip
QUANTITIES = (
    "0",
    "-1",
    "1e400",
    "1e-300",
    "nan",
    "inf",
    "9" * 400,
    "9" * 5000,
    "0.0000001",
    "1e30",
    "1_0",
    "",
)
UNITS = ("Gbit/s", "Mbit/s", "GB/s", "us", "ms", "ns", "s", "%", "GiB", "", "parsec")
WORDS = (
    0,
    1,
    2,
    0x7F,
    0xFF,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


def change_toml(source: random.Random, content: bytes) -> bytes:
    """Lines, keys and values of TOML."""
    lines = content.decode(errors="surrogateescape").splitlines() or [""]
    at = source.randrange(len(lines))
    key, equals, value = lines[at].partition("=")
    way = source.randrange(9)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines.insert(source.randrange(len(lines)), lines[at])
    elif way == 2:
        lines[at] = "".join(source.sample(lines[at], len(lines[at])))
    elif way == 3:
        lines.insert(at, "".join(chr(source.randrange(1, 0x250)) for _ in range(8)))
    elif way == 4:
        lines.insert(
            at, source.choice(("", "x = ")) + "[" * source.choice((1, 2, 3, 5000)) + "nccl]"
        )
    elif equals and way in (5, 6):
        quantity = f"{source.choice(QUANTITIES)} {source.choice(UNITS)}".strip()
        lines[at] = f"{key}= {json.dumps(quantity)}"
    elif equals and way == 7:
        odd = source.choice(ODD)
        lines[at] = f"{key}= {json.dumps(odd) if isinstance(odd, str | list | bool) else odd}"
    elif equals:
        number = "".join(c for c in value if c.isdigit())
        lines[at] = lines[at].replace(number, source.choice(QUANTITIES), 1) if number else key
    return "\n".join(lines).encode(errors="surrogateescape")


def change_words(source: random.Random, content: bytes) -> bytes:
    """Lines of text, and words between spaces."""
    lines = content.decode(errors="surrogateescape").splitlines() or [""]
    at, way = source.randrange(len(lines)), source.randrange(6)
    words = lines[at].split(" ")
    if way == 0:
        del lines[at]
    elif way == 1:
        lines.insert(source.randrange(len(lines)), lines[at])
    elif way == 2:
        lines[at] = lines[at][: source.randrange(len(lines[at]) + 1)]
    else:
        others = source.choice(lines).split(" ")
        odd = (*QUANTITIES, "9" * 5000, "4" * 9, "\0", "\u0665", "-", "#", "\x1b[0m", *others)
        put = source.choice(odd)
        which = source.randrange(len(words))
        # a number within a word, such as slots=8, or the word
        words[which] = re.sub(r"\d+", lambda _: put, words[which], count=1) if way == 3 else put
        lines[at] = " ".join(words)
    return "\n".join(lines).encode(errors="surrogateescape")


def nodes_of(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside of a JSON value, so that it can be replaced or deleted."""
    found: list[tuple[Any, Any]] = []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(items):
        found.append((value, key))
        found += nodes_of(inner)
    return found


def change_json(source: random.Random, content: bytes) -> bytes:
    """The text, or a value in it."""
    text = content.decode()
    if source.random() < 0.2:
        at = source.randrange(len(text))
        put = source.choice(("", "\0", '"', "}", "[" * 5000, text[at : at + 50]))
        return (text[:at] + put + text[at + 1 :]).encode()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return content
    there = nodes_of(value)
    if not there:
        return content
    container, key = source.choice(there)
    if source.random() < 0.2:
        del container[key]
    else:
        others = [one[at] for one, at in there]
        container[key] = copy.deepcopy(source.choice(ODD if source.random() < 0.7 else others))
    return json.dumps(value).encode()


def change_json_lines(source: random.Random, content: bytes) -> bytes:
    """One of the lines, each a JSON value, or their order and number."""
    lines = content.split(b"\n")
    at, way = source.randrange(len(lines)), source.randrange(8)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines.insert(source.randrange(len(lines)), lines[at])
    elif way == 2:
        lines[at] += source.choice((b"\xff", b"[" * 5000, b"\0", b"\r"))
    elif lines[at]:
        try:
            lines[at] = change_json(source, lines[at])
        except UnicodeDecodeError:  # of an earlier mistake
            pass
    return b"\n".join(lines)


def change_bytes(source: random.Random, content: bytes) -> bytes:
    """Bytes, numbers that stand where a table may have them, or the length."""
    changed, way = bytearray(content), source.randrange(6)
    if way == 0 or len(changed) < 8:
        return content[: source.randrange(len(content) + 1)]
    if way == 1:
        for _ in range(source.choice((1, 8))):
            changed[source.randrange(len(changed))] = source.randrange(256)
        return bytes(changed)
    size = source.choice((1, 2, 4, 8))
    at = source.randrange(len(changed) // size) * size
    word = source.choice((*WORDS, source.randrange(2 * len(changed)), len(changed)))
    changed[at : at + size] = struct.pack("<Q", word)[:size]
    return bytes(changed)
