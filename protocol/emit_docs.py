"""Tables inside pages of docs/.

A page says where: what lies between `<!-- generated: KIND NAME -->` and `<!-- end -->` is replaced.
KIND is messages, array, map, enum, layout or environment.
"""

import re
import textwrap

from description import WIDTH, Mistake

PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)


def table(columns, rows):
    """Lines of a Markdown table. A column that is empty in all rows is left out."""
    used = [n for n in range(len(columns)) if any(row[n] for row in rows)]
    lines = [
        [columns[n] for n in used],
        ["---"] * len(used),
        *([row[n] for n in used] for row in rows),
    ]
    return [f"| {' | '.join(line)} |" for line in lines]


def fields_of(message, number, request):
    """A message as an array: `[2, seq, req, clock, ...]`."""
    names = [str(number), "seq", *(["req"] if request else [])]
    return f"`[{', '.join([*names, *(shown(field) for field in message['fields'])])}]`"


def shown(field):
    """A field's name, in brackets when it is an array of its type."""
    return f"[{field['name']}]" if field["type"].endswith("[]") else field["name"]


def messages(description, _):
    """All messages with their replies."""
    rows = []
    for name, message in description.messages["message"].items():
        if "fields" not in message:
            continue
        number = message["number"]
        reply = message.get("reply_is", "none")
        if "reply" in message:
            inside = ", ".join([str(number), "req", *(shown(field) for field in message["reply"])])
            reply = f"`[{inside}]`"
        sender = "leader" if message.get("leader") else "any"
        rows.append(
            (name.upper(), fields_of(message, number, message.get("request")), reply, sender)
        )
    return table(("message", "array", "reply", "from"), rows)


def structure(kind):
    """The fields of an array or a map inside messages."""

    def rows_of(description, name):
        found = description.messages[kind][name]
        rows = [
            (f"`{field.get('key', field['name'])}`", field["type"], field.get("doc", ""))
            for field in found["fields"]
        ]
        return [found["doc"], "", *table(("field", "type", "meaning"), rows)]

    return rows_of


def enum(description, name):
    """The values of an enumeration; in one line when nothing is said of them."""
    found = description.enums[name]
    labels = [f"`{value.get('label', value['name'])}`" for value in found["values"]]
    if any("doc" in value for value in found["values"]):
        rows = [
            ("" if "text" in found else str(value["value"]), label, value.get("doc", ""))
            for value, label in zip(found["values"], labels, strict=True)
        ]
        return [found["doc"], "", *table(("number", "name", "meaning"), rows)]
    pairs = zip(found["values"], labels, strict=True)
    text = ", ".join(f"{value['value']} {label}" for value, label in pairs)
    return textwrap.wrap(f"{found['doc']} {text}.", WIDTH, break_on_hyphens=False)


def layout(description, name):
    """A file or structure: what it is, and its fields."""
    found = description.layouts[name]
    begins = [f"{found['size']} bytes"]
    if "magic" in found:
        begins.append(f"magic {found['magic']:#x}")
    if "version" in found:
        begins.append(f"version {found['version']}")
    in_c = f" C: `struct {found['c']}`." if "c" in found else ""
    text = f"{found['doc']} {', '.join(begins).capitalize()}.{in_c}"
    lines = textwrap.wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False)
    if "notes" in found:
        lines += ["", *found["notes"].strip().splitlines()]
    rows = []
    for field in found["fields"]:
        array = f"[{field['count']}]" if "count" in field else ""
        rows.append(
            (
                str(field["offset"]),
                field["type"] + array,
                f"`{field['name']}`",
                "unused" if field.get("pad") else field.get("doc", ""),
            )
        )
    return [*lines, "", *table(("offset", "type", "field", "meaning"), rows)]


def environment(description, _):
    """All variables."""
    rows = [
        (f"`{name}`", variable["set_by"], variable["read_by"], variable["doc"])
        for name, variable in description.environment.items()
    ]
    return table(("variable", "set by", "read by", "meaning"), rows)


KINDS = {
    "messages": messages,
    "array": structure("array"),
    "map": structure("map"),
    "enum": enum,
    "layout": layout,
    "environment": environment,
}


def filled(page, description, path):
    """The page with its generated parts as they are to be. Raises Mistake when it names a part that
    there is not."""

    def part(match):
        kind, _, name = match[2].partition(" ")
        try:
            lines = KINDS[kind](description, name)
        except KeyError:
            raise Mistake(f"{path}: there is nothing to generate for: {match[2]}") from None
        return "\n".join([match[1], *lines, "", match[3]])

    return PART.sub(part, page)
