"""The one description (protocol/) and what is made of it: nothing is stale, nothing is left out, C
and Python agree on bytes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from phantora_ns import protocol

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "protocol"
VARIABLE = re.compile(r"\bPHANTORA_[A-Z0-9_]*[A-Z0-9]\b")
IN_PAGES = {"PHANTORA_X", "PHANTORA_LEAD_X", "PHANTORA_LEAD", "PHANTORA_"}
"""Stand for any variable in texts and in prefixes."""
LEADERS = "PHANTORA_LEAD_"
"""Any variable comes with this prefix as well, in the process that leads."""


@pytest.fixture(scope="module")
def generator():
    """The generator's modules."""
    sys.path.insert(0, str(FOLDER))
    try:
        import description
        import emit_docs
        import generate
    finally:
        sys.path.remove(str(FOLDER))
    return {"description": description, "emit_docs": emit_docs, "generate": generate}


def test_nothing_generated_is_stale():
    done = subprocess.run(
        [sys.executable, FOLDER / "generate.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_file_is_found(generator, tmp_path, monkeypatch, capsys):
    path = tmp_path / "protocol.gen.h"
    path.write_text("old")
    generate = generator["generate"]
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "generated", lambda: {path: "new"})
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        generate.main()
    assert ended.value.code == 1 and "protocol.gen.h is stale" in capsys.readouterr().out
    assert path.read_text() == "old"


def used_variables():
    """Every PHANTORA_* variable in the tree's own files, the tables of them apart."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    found = {}
    for name in listed:
        path = ROOT / name
        if name in ("protocol/environment.toml", "docs/environment.md") or not path.is_file():
            continue
        if path == Path(__file__) or name.startswith("bench/accuracy/data"):
            continue
        text = path.read_bytes().decode(errors="replace")
        guards = set(re.findall(r"#ifndef (PHANTORA_\w+_H)\b", text))
        for variable in VARIABLE.findall(text):
            if variable not in IN_PAGES | guards:
                found.setdefault(variable, name)
    return found


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_table_of_variables_is_complete_and_has_no_other(generator):
    known = generator["description"].load().environment
    used = used_variables()
    missing = {
        name: path
        for name, path in used.items()
        if name not in known and name.replace(LEADERS, "PHANTORA_", 1) not in known
    }
    assert missing == {}, "variables that protocol/environment.toml does not name"
    assert set(known) <= set(used), "variables that nobody uses"


def test_every_part_of_the_description_is_on_a_page(generator):
    described = generator["description"].load()
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    kinds = {"enum": described.enums, "layout": described.layouts}
    kinds |= {kind: described.messages[kind] for kind in ("array", "map")}
    left_out = [
        f"{kind} {name}"
        for kind, names in kinds.items()
        for name in names
        if f"<!-- generated: {kind} {name} -->" not in pages and (kind, name) != ("enum", "message")
    ]
    assert left_out == []


@pytest.mark.parametrize(
    "fields, said",
    [
        ([{"name": "a", "type": "u8"}, {"name": "b", "type": "u32"}], "b at byte 1 is not aligned"),
        ([{"name": "a", "type": "u32"}], "fill 4 bytes, its size is 8"),
    ],
)
def test_a_layout_that_a_compiler_would_pad_is_refused(generator, fields, said):
    layout = {"fields": fields, "size": 8}
    with pytest.raises(generator["description"].Mistake, match=said):
        generator["description"].place("thing", layout, {"thing": layout})


def test_a_page_that_names_an_unknown_part_is_refused(generator):
    page = "<!-- generated: enum nothing -->\n<!-- end -->\n"
    described = generator["description"].load()
    with pytest.raises(generator["description"].Mistake, match="enum nothing"):
        generator["emit_docs"].filled(page, described, "page.md")


def test_c_and_python_put_every_field_in_the_same_place(generator, tmp_path):
    """C fills each structure with numbers that no two fields share; Python must read them back."""
    layouts = generator["description"].load().layouts
    named = {name: layout for name, layout in layouts.items() if "c" in layout}
    code = ['#include "base/protocol.gen.h"', "#include <stdio.h>", "#include <string.h>"]
    code += ["int main(void)", "{"]
    for name, layout in named.items():
        code += ["{", f"struct {layout['c']} it;", "memset(&it, 0, sizeof it);"]
        value = 1
        for field in layout["fields"]:
            if field.get("pad") or field["type"] not in ("u8", "u16", "u32", "u64", "i32", "i64"):
                continue
            for index in range(field.get("count", 1)):
                where = f"{field['name']}[{index}]" if "count" in field else field["name"]
                code.append(f"it.{where} = {value};")
                value += 1
        code += [f'printf("{name} ");', "unsigned char bytes[sizeof it];"]
        code += ["memcpy(bytes, &it, sizeof it);"]
        code += ['for (size_t i = 0; i < sizeof it; i++) printf("%02x", bytes[i]);', 'puts("");']
        code += ["}"]
    code += ["}"]
    source, program = tmp_path / "layouts.c", tmp_path / "layouts"
    source.write_text("\n".join(code))
    command = ["cc", "-std=gnu11", "-iquote", ROOT / "libintercept", "-o", program, source]
    subprocess.run(command, check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    lines = dict(line.split() for line in printed.splitlines())
    assert set(lines) == set(named)
    for name, text in lines.items():
        cls = getattr(protocol, "".join(part.capitalize() for part in name.split("_")))
        data = bytes.fromhex(text)
        read = cls.unpack(data)
        expected = 1
        for value in read:
            if isinstance(value, bytes) or hasattr(value, "_fields"):
                continue  # nested structures are named on their own
            for number in value if isinstance(value, tuple) else (value,):
                assert number == expected, (name, read)
                expected += 1
        assert read.pack() == data
