"""The C header."""

from description import NOTICE, SCALARS, WIDTH


def comment(text, indent=""):
    """Lines of a C comment, wrapped as clang-format does."""
    room = WIDTH - len(indent)
    text = text.replace("`", "")
    if len(text) + 6 <= room:
        return [f"{indent}/* {text} */"]
    # the last word and the end of the comment stay on one line
    head, _, last = text.rpartition(" ")
    words = [*head.split(), f"{last}\0*/"]
    lines, line = [], "/*"
    for word in words:
        if len(line) + 1 + len(word) > room:
            lines.append(line)
            line = " *"
        line += " " + word
    return [indent + line.replace("\0", " ") for line in [*lines, line]]


def labels(enum):
    """What reports and files call the values, quoted."""
    return [f'"{value.get("label", value["name"])}"' for value in enum["values"]]


def c_enum(enum):
    """A C enumeration."""
    if "text" in enum:
        names = [f"{enum['prefix']}{value['name'].upper()}" for value in enum["values"]]
        pairs = zip(names, labels(enum), strict=True)
        return [*comment(enum["doc"]), *(f"#define {name} {label}" for name, label in pairs)]
    lines = [*comment(enum["doc"]), f"enum {enum['c']} {{"]
    expected = 0
    for value in enum["values"]:
        if "doc" in value:
            lines += comment(value["doc"], "    ")
        number = "" if value["value"] == expected else f" = {value['value']}"
        lines.append(f"    {enum['prefix']}{value['name'].upper()}{number},")
        expected = value["value"] + 1
    lines.append("};")
    if "count" in enum:
        lines.append(f"#define {enum['count']} {len(enum['values'])}")
    if "labels" in enum:
        lines.append(f"static const char *const {enum['labels']}[] __attribute__((unused)) = {{")
        lines += [*(f"    {label}," for label in labels(enum)), "};"]
    return lines


def c_constants(layout):
    """The magic number, version and file name of a layout."""
    prefix = layout["c"].removesuffix("_header").upper()
    found = []
    if "magic" in layout:
        found.append(f"#define {prefix}_MAGIC {layout['magic']:#018x}ull")
    if "version" in layout:
        found.append(f"#define {prefix}_VERSION {layout['version']}")
    if "file" in layout:
        found.append(f'#define {prefix}_FILE "{layout["file"]}"')
    for name, number in layout.get("constants", {}).items():
        found.append(f"#define {prefix}_{name.upper()} {number}")
    return found


def c_struct(layout, layouts):
    """A C structure, and what a compiler must make of it."""
    name = layout["c"]
    lines = [*comment(layout["doc"]), f"struct {name} {{"]
    for field in layout["fields"]:
        scalar = SCALARS.get(field["type"])
        kind = scalar[2] if scalar else f"struct {layouts[field['type']]['c']}"
        if field.get("atomic"):
            kind = f"_Atomic {kind}"
        if "doc" in field:
            lines += comment(field["doc"], "    ")
        array = f"[{field['count']}]" if "count" in field else ""
        lines.append(f"    {kind} {field['name']}{array};")
    lines += ["};", f"PH_SIZE({name}, {layout['size']});"]
    lines += [f"PH_AT({name}, {field['name']}, {field['offset']});" for field in layout["fields"]]
    return lines


def header(description):
    """The C header."""
    enums, layouts, messages, _ = description
    lines = [
        f"/* {NOTICE}",
        " *",
        " * Why it exists: the numbers and the binary files that the hub's Python and this C share. C++",
        " * sees the numbers alone. */",
        "/* clang-format off */",
        "#ifndef PH_PROTOCOL_GEN_H",
        "#define PH_PROTOCOL_GEN_H",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "/* of the messages */",
        f"#define PH_PROTOCOL_VERSION {messages['version']}",
        f"#define PH_MESSAGE_MAX_BYTES {messages['max_bytes']}",
    ]
    for enum in enums.values():
        lines += ["", *c_enum(enum)]
    named = [layout for layout in layouts.values() if "c" in layout]
    lines += ["", "/* Files: what begins them, and their names in RUN_DIR. */"]
    for layout in named:
        lines += c_constants(layout)
    lines += [
        "",
        "#ifndef __cplusplus",
        '#define PH_SIZE(type, bytes) _Static_assert(sizeof(struct type) == bytes, "protocol/")',
        '#define PH_AT(type, field, at) _Static_assert(offsetof(struct type, field) == at, "protocol/")',
    ]
    for layout in named:
        lines += ["", *c_struct(layout, layouts)]
    lines += ["", "#undef PH_SIZE", "#undef PH_AT", "#endif", "#endif"]
    return "\n".join(lines) + "\n"
