"""The Python classes of messages, which msgspec decodes and checks in one step."""

from description import NOTICE
from emit_python import camel, docstring

PLAIN = {
    "int": "int",
    "str": "str",
    "bytes": "bytes",
    "map": "dict[Any, Any]",
    "expression": "list[Any]",
    "any": "Any",
    "time": "Time",
    "duration": "Duration",
    "index": "Index",
}


def python_type(text):
    """int -> int, stall[] -> list[Stall], bytes? -> bytes | None"""
    if text.endswith("?"):
        return f"{python_type(text[:-1])} | None"
    if text.endswith("[]"):
        return f"list[{python_type(text[:-2])}]"
    return PLAIN.get(text) or camel(text)


def fields(items):
    """Lines of a class's fields. Those of a map may be missing."""
    lines = []
    for field in items:
        default = ""
        if "key" in field:
            nothing = "None" if field["type"].endswith("?") else "[]"
            default = f' = field(default={nothing}, name="{field["key"]}")'
            default = default.replace("default=[]", "default_factory=list")
        lines.append(f"    {field['name']}: {python_type(field['type'])}{default}")
        if "doc" in field:
            lines += docstring(field["doc"], "    ")
    return lines


def structures(messages):
    """The classes of arrays and maps inside messages."""
    lines = []
    for kind, options in (("array", "Array"), ("map", "Struct, gc=False")):
        for name, found in messages[kind].items():
            if any("key" not in field for field in found["fields"]) and kind == "map":
                continue  # its reader takes it as it comes
            lines += ["", "", f"class {camel(name)}({options}):"]
            lines += [*docstring(found["doc"], "    "), "", *fields(found["fields"])]
    return lines


def module(description):
    """The Python module."""
    messages = description.messages
    names, lines = [], []
    for name, message in messages["message"].items():
        if "fields" not in message:
            continue
        names.append(camel(name))
        base = "Request" if message.get("request") else "FromClient"
        lines += ["", "", f"class {camel(name)}({base}, tag={message['number']}):"]
        lines += [f'    """{name.upper()} of docs/wire-protocol.md."""', ""]
        lines += fields(message["fields"])
    return (
        "\n".join(
            [
                f'"""{NOTICE}',
                "",
                "Why it exists: a client may be of another version, or broken. msgspec decodes a frame "
                "into one",
                "of these classes and checks its shape on the way, so that handlers see only what they "
                "were",
                "written for.",
                '"""',
                "",
                "from typing import Annotated, Any",
                "",
                "from msgspec import Meta, Struct, field",
                "",
                "MAX_TIME_NS = 1 << 60",
                "Time = Annotated[int, Meta(ge=0, lt=MAX_TIME_NS)]",
                "Duration = Annotated[int, Meta(gt=0, lt=MAX_TIME_NS)]",
                "Index = Annotated[int, Meta(ge=0)]",
                "",
                "",
                "class Array(Struct, array_like=True, forbid_unknown_fields=True, gc=False):",
                '    """An array with exactly these elements."""',
                *structures(messages),
                "",
                "",
                "class FromClient(Array):",
                '    """Any message of a client."""',
                "",
                "    seq: int",
                "",
                "",
                "class Request(FromClient):",
                '    """A message that is answered."""',
                "",
                "    request: int",
                *lines,
                "",
                "",
                "AnyMessage = (",
                "    " + "\n    | ".join(names),
                ")",
            ]
        )
        + "\n"
    )
