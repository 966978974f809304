"""`phantora-ns kernels`: what it prints, what it writes, and one line for every mistake."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest
from recorded import CONTEXT, GRAPH, gemm, kernel, record, varied

from phantora_ns import cli
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.families import family

NAME = "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """No database but those of the test, and a terminal of known width."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(databases, "SHIPPED", tmp_path / "shipped")


@pytest.fixture
def command(capsys):
    """Runs `phantora-ns kernels ARGUMENTS`; (exit code, standard output, standard error)."""

    def run(*arguments):
        code = cli.main(["kernels", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def file(tmp_path):
    return record(
        tmp_path / "h200.sqlite",
        (0, kernel(NAME, b"1"), ["aten::fill_", 0, 4096, [[1024]]], [1000, 1100, 1200]),
        (0, kernel("triton_poi_fused_add_0"), None, [2000] * 10),
        (1, gemm(), CONTEXT, [50_000, 52_000]),
        (2, GRAPH, ["aten::convolution", 1, 1, []], [7000]),
        (3, [0, 4096, 2, 2], None, [1500]),
        uid="one",
        configuration="small",
        date="2026-01-01",
        device="NVIDIA H200",
        driver="580.82",
        torch="2.11.0",
    )


def test_list(command, file, tmp_path):
    code, out, _ = command("list")
    assert code == 0 and "no kernel-time databases" in out
    databases.add(databases.user_path("h200"), [file])
    code, out, err = command("list", "--runs")
    header, line, run = out.splitlines()
    assert (code, err) == (0, "")
    assert header.split() == ["GPU", "runs", "signatures", "durations", "time", "file"]
    assert line.split()[:6] == ["h200", "1", "5", "17", "0.00", "s"] and line.endswith(
        str(databases.user_path("h200"))
    )
    assert (
        run.strip()
        == "small: 5 signatures, 17 durations; 2026-01-01, NVIDIA H200, driver 580.82, torch 2.11.0 [one]"
    )
    code, out, err = command("list", "/dev/null", file)
    assert (
        code == 2
        and str(file) in out
        and err.startswith("phantora-ns: /dev/null: ")
        and err.count("\n") == 1
    )


def shown(out: str) -> list[str]:
    """The signatures of a table, in order."""
    return [line.split("  ")[-1] for line in out.splitlines()[1:-1]]


def test_show(command, file):
    code, out, err = command("show", file)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == [
        "gemm",
        "other",
        "convolution",
        "fill",
        "device",
    ]
    gemm_line = out.splitlines()[1]
    assert gemm_line.split()[:6] == ["gemm", "aten::mm", "2", "51.00", "4%", "0.102"]
    assert (
        "at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<float>" in out
        and "_ZN2at" not in out
    )
    assert out.splitlines()[-1] == "5 signatures, 17 durations, 0.134 ms"
    (product,) = shown(command("show", file, "--family", "gemm")[1])
    assert product == "gemm NN 8x4096x4096 batch 1 types 14,14,14,14 compute 68 epilogue 1"
    assert len(shown(command("show", file, "--operator", "aten::fill_")[1])) == 1
    assert len(shown(command("show", file, "--match", "FILLfunctor")[1])) == 1
    assert "0 signatures" in command("show", file, "--match", "nothing of this name")[1]
    code, out, _ = command("show", file, "--limit", "2")
    assert len(shown(out)) == 2 and "3 not shown" in out
    cut, whole = (
        max(map(len, command("show", file, *wide)[1].splitlines())) for wide in ([], ["--wide"])
    )
    assert cut < whole


def test_show_takes_the_only_file_there_is(command, file):
    code, _, err = command("show")
    assert code == 2 and "there is no kernel-time database" in err
    databases.add(databases.user_path("h200"), [file])
    assert command("show")[:2] == command("show", file)[:2]
    databases.add(databases.user_path("a100"), [record(file.with_name("a"), gpu="a100")])
    code, _, err = command("show")
    assert code == 2 and "there are 2 kernel-time databases" in err


def test_diff(command, file, tmp_path):
    other = record(
        tmp_path / "other",
        (1, gemm(), CONTEXT, [102_000]),
        (3, [0, 4096, 2, 2], None, [1500]),
        (4, ["f", []], None, [1]),
    )
    code, out, err = command("diff", file, other)
    lines = {line.split()[0]: line.split() for line in out.splitlines()}
    assert (code, err) == (0, "")
    assert lines["gemm"][1:] == ["1", "2.000", "2.000", "2.000", "2.000", "0.102", "2.000"]
    assert lines["device"][2:] == ["1", "1.000", "1.000", "1.000", "1.000", "0.002", "1.000"]
    assert lines["all"][1:6] == ["2", "2.000", "1.000", "2.000", "2.000"]
    assert "in both: 2; only in A: 3; only in B: 1" in out
    (worst,) = [line for line in out.splitlines() if "->" in line]
    assert (
        worst.split()[0] == "2.000"
        and "51.00 us x2" in worst
        and "102.00 us x1" in worst
        and "aten::mm" in worst
    )
    same = command("diff", file, file)[1]
    assert "->" not in same and "only in A: 0; only in B: 0" in same
    code, out, _ = command("diff", file, record(tmp_path / "empty"))
    assert code == 0 and "in both: 0; only in A: 5; only in B: 0" in out


def test_merge(command, tmp_path):
    one, two = varied(tmp_path / "one", "1", 1), varied(tmp_path / "two", "2", 2)
    code, out, err = command("merge", "-o", tmp_path / "out", one, two)
    assert (code, err) == (0, "") and out.splitlines()[1].split()[:2] == ["h200", "2"]
    first = (tmp_path / "out").read_bytes()
    code, _, err = command("merge", "-o", tmp_path / "out", one)
    assert code == 2 and "exists already" in err and (tmp_path / "out").read_bytes() == first
    assert command("merge", "-o", tmp_path / "out", two, tmp_path / "out", one)[0] == 0
    assert (tmp_path / "out").read_bytes() == first


def test_export_and_import(command, file, tmp_path):
    assert command("merge", "-o", tmp_path / "canonical", file)[0] == 0
    code, out, err = command("export", tmp_path / "canonical")
    assert (code, err) == (0, "")
    assert json.loads(out.splitlines()[0]) == {
        "format": "phantora-ns kernel times",
        "version": 2,
        "gpu": "h200",
    }
    assert command("export", file, "-o", tmp_path / "lines.jsonl") == (0, "", "")
    assert (tmp_path / "lines.jsonl").read_text() == out
    assert command("import", tmp_path / "lines.jsonl", "-o", tmp_path / "again") == (0, "", "")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "canonical").read_bytes()
    code, out, _ = command("export", file, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and len(rows) == 5
    (product,) = [row for row in rows if row["family"] == "gemm"]
    assert [product[name] for name in ("configuration", "operator", "count", "median")] == [
        "small",
        "aten::mm",
        "2",
        "51000.0",
    ]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("show", "FOREIGN"), "no kernel-time database"),
        (("show", "MISSING"), "no such file"),
        (("diff", "FILE"), "Missing argument"),
        (("diff", "FILE", "FOREIGN"), "no kernel-time database"),
        (("merge", "FILE"), "Missing option '-o'"),
        (("merge", "-o", "NEW", "FOREIGN"), "no kernel-time database"),
        (("merge", "-o", "NOWHERE", "FILE"), "cannot be written"),
        (("export", "FILE", "--format", "xml"), "'xml' is not one of"),
        (("export", "FILE", "-o", "FOREIGN"), "exists already"),
        (("export", "FILE", "-o", "NOWHERE"), "cannot be written"),
        (("import", "MISSING", "-o", "NEW"), "cannot be read"),
        (("import", "FOREIGN", "-o", "NEW"), "line 1"),
        (("import", "FILE", "-o", "NEW"), "line 1"),
        (("import", "FOREIGN", "-o", "FILE"), "exists already"),
        (("show", "FILE", "--limit", "-1"), "--limit"),
        (("colour",), "colour"),
    ],
)
def test_mistakes_are_one_line(command, file, tmp_path, arguments, said):
    (tmp_path / "foreign").write_text("hello\n" * 1000)
    names = {
        "FOREIGN": tmp_path / "foreign",
        "MISSING": tmp_path / "missing",
        "FILE": file,
        "NEW": tmp_path / "new",
        "NOWHERE": tmp_path / "no" / "where",
    }
    code, out, err = command(*(names.get(a, a) for a in arguments))
    assert code == 2 and out == "" and said in err
    assert err.startswith("phantora-ns: ") and err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_reader_that_has_seen_enough_is_no_error(file, root):
    """As `phantora-ns kernels export FILE | head -1` does, with more to say than a pipe holds."""
    path = record(
        file.with_name("long"),
        *((0, kernel("k" * 500, i.to_bytes(2, "big")), None, [1]) for i in range(1000)),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "phantora_ns.cli", "kernels", "export", str(path)],
        cwd=root,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.read(10)
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (1, b"")  # as click ends every command then


def test_families_are_given_to_anything(file):
    with Database.open(file) as database:
        found = [family(e.kind, e.fields, e.context) for e in database.signatures()]
    assert found == ["other", "fill", "gemm", "convolution", "device copy"]
    for kind, fields in (
        (0, []),
        (0, None),
        (2, []),
        (2, [None]),
        (2, [[[[]]]]),
        (3, ["x"]),
        (9, []),
        (None, None),
    ):
        assert family(kind, fields) in ("unknown", "cudnn")
    assert (family(3, [1, 5, 2, 2]), family(3, [0, 5, 0, 2]), family(4, ["f", []])) == (
        "memset",
        "host copy",
        "call",
    )
