"""The Python module of numbers and files."""

import re
import textwrap

from description import NOTICE, SCALARS, WIDTH
from emit_c import labels


def camel(name):
    """kernel_table_slot -> KernelTableSlot"""
    return "".join(part.capitalize() for part in name.split("_"))


def docstring(text, indent):
    """Lines of a docstring."""
    text = f'"""{text}"""'
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def py_tuple(start, items, indent=""):
    """`start` and a tuple, as ruff format writes it."""
    one = f"{indent}{start}({', '.join(items)}{',' if len(items) == 1 else ''})"
    if len(one) <= WIDTH:
        return [one]
    return [f"{indent}{start}(", *(f"{indent}    {item}," for item in items), f"{indent})"]


def py_enum(name, enum):
    """A class of plain integers: they are packed, compared and looked up for every message, and
    `type(x) is int` must hold."""
    lines = [f"class {camel(name)}:", *docstring(enum["doc"], "    "), ""]
    for value, label in zip(enum["values"], labels(enum), strict=True):
        lines.append(f"    {value['name'].upper()} = {label if 'text' in enum else value['value']}")
        if "doc" in value:
            lines += docstring(value["doc"], "    ")
    if [value["value"] for value in enum["values"]] == list(range(len(enum["values"]))):
        lines += ["", *py_tuple("LABELS = ", labels(enum), "    ")]
        lines += docstring("What reports and files call them, by number.", "    ")
    return lines


def py_format(layout, layouts):
    """The layout in the notation of the struct module, without byte order."""
    parts = []
    for field in layout["fields"]:
        if field.get("pad"):
            parts.append(f"{field['bytes']}x")
        elif field["type"] in SCALARS:
            count = str(field["count"]) if "count" in field else ""
            parts.append(count + SCALARS[field["type"]][1])
        else:
            parts.append(py_format(layouts[field["type"]], layouts))
    return re.sub(r"\b1x", "x", "".join(parts))


def py_fields(layout, layouts):
    """(name, type, doc, expression that makes it of the unpacked `v`, expression that packs it) of
    each field."""
    fields, at = [], 0
    for field in layout["fields"]:
        name = field["name"]
        own = f"self.{name}"
        if field.get("pad"):
            continue
        if field["type"] == "char":
            kind, made, packed, used = "bytes", f"v[{at}]", own, 1
        elif field["type"] not in SCALARS:
            kind = camel(field["type"])
            used = len(layouts[field["type"]]["fields"])
            made, packed = f"{kind}(*v[{at}:{at + used}])", f"*{own}"
        elif "count" in field:
            kind, used = "tuple[int, ...]", field["count"]
            made, packed = f"v[{at}:{at + used}]", f"*{own}"
        else:
            kind, made, packed, used = "int", f"v[{at}]", own, 1
        fields.append((name, kind, field.get("doc"), made, packed))
        at += used
    return fields


def joined(made):
    """The same values with runs of plain ones as slices: v[2], v[3], v[4] -> *v[2:5]"""
    found = []
    for text in made:
        plain = re.fullmatch(r"v\[(\d+)\]", text)
        run = re.fullmatch(r"\*v\[(\d+):(\d+)\]", found[-1]) if found else None
        if plain and run:
            found[-1] = f"*v[{run[1]}:{int(plain[1]) + 1}]"
        else:
            found.append(f"*v[{plain[1]}:{int(plain[1]) + 1}]" if plain else text)
    return found


def py_layout(name, layout, layouts):
    """The constants and the class of a layout."""
    upper = name.upper()
    prefix = upper.removesuffix("_HEADER")
    lines = []
    if "magic" in layout:
        lines.append(f"{prefix}_MAGIC = {layout['magic']:#018X}".replace("X", "x"))
    if "version" in layout:
        lines.append(f"{prefix}_VERSION = {layout['version']}")
    if "file" in layout:
        lines.append(f'{prefix}_FILE = "{layout["file"]}"')
    for constant, number in layout.get("constants", {}).items():
        lines.append(f"{prefix}_{constant.upper()} = {number}")
    lines.append(f'{upper} = Struct("<{py_format(layout, layouts)}")')
    watched = [field for field in layout["fields"] if field.get("atomic")]
    if watched:
        lines += [f"{upper}_AT = {{"]
        lines += [f'    "{field["name"]}": {field["offset"]},' for field in layout["fields"]]
        lines += ["}", *docstring("Offsets of the fields.", "")]
    fields = py_fields(layout, layouts)
    lines += ["", "", f"class {camel(name)}(NamedTuple):", *docstring(layout["doc"], "    "), ""]
    for field, kind, doc, _, _ in fields:
        lines.append(f"    {field}: {kind}")
        if doc:
            lines += docstring(doc, "    ")
    flat = all(kind in ("int", "bytes") for _, kind, *_ in fields)
    lines += [
        "",
        "    @classmethod",
        f'    def unpack(cls, data: Buffer, at: int = 0) -> "{camel(name)}":',
        '        """What lies at `at`. Raises struct.error when it is cut short."""',
    ]
    if flat:
        lines.append(f"        return cls._make({upper}.unpack_from(data, at))")
    else:
        lines.append(f"        v = {upper}.unpack_from(data, at)")
        values = joined([made for *_, made, _ in fields])
        call = f"        return cls._make(({', '.join(values)}))"
        wrapped = ["        return cls._make(", *py_tuple("", values, " " * 12), "        )"]
        lines += [call] if len(call) <= WIDTH else wrapped
    lines += ["", "    def pack(self) -> bytes:", '        """Its bytes."""']
    lines += py_tuple(
        f"return {upper}.pack", ["*self"] if flat else [packed for *_, packed in fields], "        "
    )
    return [line.replace("pack(*self,)", "pack(*self)") for line in lines]


def module(description):
    """The Python module."""
    enums, layouts, messages, _ = description
    lines = [
        f'"""{NOTICE}',
        "",
        "Why it exists: the numbers and the binary files that the ranks' C and this Python share.",
        '"""',
        "",
        "from mmap import mmap",
        "from struct import Struct",
        "from typing import NamedTuple",
        "",
        "Buffer = bytes | bytearray | memoryview | mmap",
        "",
        f"VERSION = {messages['version']}",
        '"""Of the messages."""',
        f"MESSAGE_MAX_BYTES = {messages['max_bytes']:_}",
        '"""Of one message. A client that sends more loses its connection."""',
    ]
    for name, enum in enums.items():
        lines += ["", "", *py_enum(name, enum)]
    for name, layout in layouts.items():
        lines += ["", "", *py_layout(name, layout, layouts)]
    return "\n".join(lines) + "\n"
