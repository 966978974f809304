"""Why it exists: the values library is machine code that a job loads. It must be the one for the
job's torch, whole, and the user's own; and where it cannot be had, one line says why.

The torch and the compiler here are stand-ins: a folder that states a version, and a script that
copies its input. tests/values runs what the real ones make."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from phantora_ns.launch.compile_values import compile_values
from phantora_ns.launch.errors import LaunchError, UsageError
from phantora_ns.launch.machine import installation, values_libraries, values_recipe
from phantora_ns.launch.machine.values_recipe import CannotCompile, CompilationFailed, library_name

VERSION = "2.99.1+cu999"
COMPILER = """#!{python}
import pathlib, sys, time
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
{extra}
if "-fsyntax-only" not in sys.argv:
    pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("made by {log}")
"""


@pytest.fixture
def torch(tmp_path):
    """The folder of a torch that no library knows."""
    return make_torch(tmp_path / "site-packages" / "torch")


def make_torch(folder, version=VERSION, asks="202002L"):
    (folder / "include" / "ATen").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "version.py").write_text(f"__version__ = '{version}'\ncuda = '99.9'\n")
    (folder / "include" / "ATen" / "ATen.h").write_text(
        f"#if __cplusplus < {asks}\n#error\n#endif\n"
    )
    return folder


class Compiler:
    """A stand-in that logs how it is called. `extra`: Python that it runs first."""

    def __init__(self, folder, monkeypatch):
        self.path, self.log = folder / "fake c++", folder / "calls"
        self.program("")
        monkeypatch.setenv("CXX", shlex.quote(str(self.path)))

    def program(self, extra):
        self.path.write_text(COMPILER.format(python=sys.executable, log=str(self.log), extra=extra))
        self.path.chmod(0o755)

    def compiled(self):
        """How often it compiled the unit."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sum(" -c " in line for line in lines)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    return Compiler(tmp_path, monkeypatch)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder in which libraries are cached; it is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(values_libraries.OFF, raising=False)
    return values_libraries.cache_folder()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package's lib/, empty."""
    folder = tmp_path / "package"
    folder.mkdir()
    monkeypatch.setattr(installation, "LIBRARIES", folder)
    return folder


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run" / "lib").mkdir(parents=True)
    return tmp_path / "run"


def test_the_name_is_the_whole_version_of_torch(torch):
    import torch as real

    assert values_recipe.own_torch().version == real.__version__
    assert values_recipe.read_torch(torch).version == VERSION
    assert values_recipe.read_torch(torch.parent) is None
    (torch / "version.py").write_text("__version__ = '../../2'\n")
    assert values_recipe.read_torch(torch) is None


@pytest.mark.parametrize(
    "text, expected",
    [
        ("#if !defined(_MSC_VER) && __cplusplus < 201703L", "c++17"),  # 2.9 to 2.13
        ("(!defined(_MSVC_LANG) && __cplusplus < 202002L)", "c++20"),  # 2.14, 2.15
        ("#if __cplusplus < 202302L", "c++23"),
        ("nothing is asked", "c++20"),
    ],
)
def test_the_standard_is_the_one_that_torch_asks_for(torch, text, expected):
    (torch / "include" / "ATen" / "ATen.h").write_text(text)
    assert values_recipe.standard(values_recipe.read_torch(torch)) == expected


def test_the_standard_compiles_the_real_torch_s_own_check(tmp_path):
    """The oracle is the compiler: with the standard that we found, ATen's check is satisfied; with
    the one before it is not."""
    found = values_recipe.own_torch()
    needed = values_recipe.standard(found)
    header = (found.folder / "include" / "ATen" / "ATen.h").read_text()
    lines = header.splitlines()
    end = next(number for number, line in enumerate(lines) if line.startswith("#error"))
    first = next(n for n in range(end, -1, -1) if "#if" in lines[n])
    unit = tmp_path / "check.cpp"
    unit.write_text("\n".join([*lines[first : end + 1], "#endif\n"]))
    before = {"c++17": "c++14", "c++20": "c++17"}[needed]
    results = [
        subprocess.run(
            ["c++", f"-std={one}", "-fsyntax-only", unit], capture_output=True
        ).returncode
        for one in (needed, before)
    ]
    assert results[0] == 0 and results[1] != 0


def test_the_package_s_library_comes_before_the_cache_s(torch, compiler, cache, package, run_dir):
    found = values_recipe.read_torch(torch)
    assert values_libraries.find(VERSION) is None
    values_libraries.compile_for(found, None)
    assert values_libraries.find(VERSION) == cache / library_name(VERSION)
    own = package / library_name(VERSION)
    own.write_text("the package's")
    assert values_libraries.find(VERSION) == own
    values_libraries.provide(run_dir)
    assert (run_dir / "lib" / own.name).read_text() == "the package's"


def test_a_run_gets_the_libraries_for_all_torches(torch, compiler, cache, package, run_dir):
    """Which torch a rank runs, only the rank knows."""
    other = make_torch(torch.parent.parent / "other" / "torch", "2.9.1+cu128", "201703L")
    (package / library_name("2.11.0+cu130")).touch()
    for folder in (torch, other):
        values_libraries.compile_for(values_recipe.read_torch(folder), None)
    values_libraries.provide(run_dir)
    versions = (VERSION, "2.9.1+cu128", "2.11.0+cu130")
    assert {path.name for path in (run_dir / "lib").iterdir()} == set(map(library_name, versions))
    assert not (run_dir / "lib" / library_name(VERSION)).is_symlink()


def test_only_the_user_s_own_file_is_used(torch, compiler, cache, package, run_dir):
    old_mask = os.umask(0o002)  # as many distributions have it
    try:
        values_libraries.compile_for(values_recipe.read_torch(torch), None)
    finally:
        os.umask(old_mask)
    library = cache / library_name(VERSION)
    assert values_libraries.find(VERSION) == library
    library.chmod(0o775)
    assert values_libraries.find(VERSION) is None
    values_libraries.provide(run_dir)
    assert not list((run_dir / "lib").iterdir())
    library.rename(cache / "elsewhere")
    (cache / "elsewhere").chmod(0o755)
    library.symlink_to(cache / "elsewhere")
    assert values_libraries.find(VERSION) is None
    library.unlink()
    (cache / "elsewhere").rename(library)
    assert values_libraries.find(VERSION) == library
    if os.geteuid() == 0:
        os.chown(library, 65534, 65534)
        assert values_libraries.find(VERSION) is None


def test_what_others_could_write_is_compiled_again(torch, compiler, cache, package):
    found = values_recipe.read_torch(torch)
    values_libraries.compile_for(found, None)
    (cache / library_name(VERSION)).chmod(0o777)
    values_libraries.compile_for(found, None)
    assert compiler.compiled() == 2 and values_libraries.find(VERSION) is not None


@pytest.mark.parametrize("spoil", ["others write", "a file", "a link"])
def test_a_cache_that_is_not_the_user_s_alone_is_not_used(
    torch, compiler, cache, package, run_dir, spoil, tmp_path
):
    cache.parents[1].mkdir(parents=True)
    if spoil == "others write":
        cache.parent.mkdir()
        cache.parent.chmod(0o777)
    elif spoil == "a file":
        cache.parent.touch()
    else:
        (tmp_path / "theirs").mkdir()
        cache.parent.symlink_to(tmp_path / "theirs")
    note = values_libraries.compile_for(values_recipe.read_torch(torch), run_dir)
    assert "for this run only" in note and str(cache.parent) in note
    assert (run_dir / "lib" / library_name(VERSION)).exists() and not cache.exists()


def test_a_home_of_another_user_is_no_cache(monkeypatch):
    """`sudo -u nobody` may keep root's HOME, and nobody may not even look into it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        Path(shared).chmod(0o755)
        package, closed, run_dir = (Path(shared) / name for name in ("package", "home", "run"))
        package.mkdir()
        (run_dir / "lib").mkdir(parents=True)
        monkeypatch.setattr(installation, "LIBRARIES", package)
        monkeypatch.setenv("XDG_CACHE_HOME", str(closed))
        values_libraries.cache_folder().mkdir(parents=True)
        (values_libraries.cache_folder() / library_name("2.0")).touch()
        closed.chmod(0)
        root = os.geteuid() == 0
        if root:  # whom no mode stops
            os.seteuid(65534)
        try:
            values_libraries.provide(run_dir)
            assert values_libraries.find("2.0") is None
            assert not values_libraries.serves(run_dir, None)
        finally:
            if root:
                os.seteuid(0)
            closed.chmod(0o700)


def test_a_home_that_cannot_be_written_costs_each_run_a_compilation(
    torch, compiler, cache, package, run_dir, tmp_path
):
    (tmp_path / "cache").touch()  # nothing can be made below it, by root neither
    found = values_recipe.read_torch(torch)
    assert "for this run only" in values_libraries.compile_for(found, run_dir)
    assert (run_dir / "lib" / library_name(VERSION)).exists()
    assert values_libraries.find(VERSION) is None
    with pytest.raises(LaunchError, match="no values library.*cache"):
        compile_values(str(torch))


RACE = """
import sys
from pathlib import Path
from phantora_ns.launch.machine import values_libraries, values_recipe
print("up", flush=True)
sys.stdin.readline()
values_libraries.compile_for(values_recipe.read_torch(Path(sys.argv[1])), None)
"""


def test_two_that_start_at_once_compile_once(torch, compiler, cache, package, root):
    compiler.program("time.sleep(0.5 if '-c' in sys.argv else 0)")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, torch],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "up\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate(timeout=60)
        assert racer.returncode == 0
    assert compiler.compiled() == 1
    assert [path.name for path in cache.iterdir()] == [library_name(VERSION)]


def test_a_failure_keeps_the_compiler_s_messages_and_is_not_repeated(
    torch, compiler, cache, package, run_dir
):
    found = values_recipe.read_torch(torch)
    compiler.program("if '-c' in sys.argv: sys.exit('error: no such header')")
    with pytest.raises(CompilationFailed) as failed:
        values_libraries.compile_for(found, run_dir)
    log = cache / f"{library_name(VERSION)}.log"
    assert str(failed.value) == str(log) and "no such header" in log.read_text()
    assert str(log) in values_libraries.obstacle(found)
    with pytest.raises(
        LaunchError, match="does not compile.*libphantora-values-2.99.1.cu999.so.log"
    ):
        compile_values(str(torch))
    compiler.program("")
    assert compile_values(str(torch)) == 0
    assert not log.exists() and values_libraries.obstacle(found) is None


def test_a_failure_without_a_cache_also_keeps_the_messages(
    torch, compiler, cache, package, run_dir, tmp_path, monkeypatch
):
    (tmp_path / "cache").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    compiler.program("if '-c' in sys.argv: sys.exit('error: no such header')")
    with pytest.raises(CompilationFailed) as failed:
        values_libraries.compile_for(values_recipe.read_torch(torch), run_dir)
    with open(str(failed.value)) as log:
        assert "no such header" in log.read()


def test_what_is_missing_is_named(torch, compiler, cache, package, monkeypatch):
    found = values_recipe.read_torch(torch)
    assert values_libraries.obstacle(found) is None
    compiler.program("if '-std=c++20' in sys.argv: sys.exit(1)")
    reason = values_libraries.obstacle(found)
    assert "does not know -std=c++20, which torch 2.99.1+cu999 asks for" in reason
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert values_libraries.obstacle(found) == (
        "no C++ compiler: no-such-compiler -O2 was not found; install g++, or name one in CXX"
    )
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    assert (
        values_libraries.obstacle(found)
        == "no C++ compiler: c++ was not found; install g++, or name one in CXX"
    )
    (torch / "include" / "ATen" / "ATen.h").unlink()
    monkeypatch.setenv("CXX", shlex.quote(str(compiler.path)))
    assert "has no headers" in values_libraries.obstacle(found)
    monkeypatch.setenv(values_libraries.OFF, "0")
    assert "PHANTORA_COMPILE_VALUES=0" in values_libraries.obstacle(found)


def test_make_compiles_only_what_changed(torch, compiler, tmp_path):
    into, found = tmp_path / "into", values_recipe.read_torch(torch)
    into.mkdir()
    for _ in range(2):
        made = values_recipe.compile_library(found, into, tmp_path, compiler=os.environ["CXX"])
    assert compiler.compiled() == 1 and [*into.iterdir()] == [made]
    os.utime(torch / "version.py")  # torch was installed again
    time.sleep(0.01)
    values_recipe.compile_library(found, into, tmp_path, compiler=os.environ["CXX"])
    assert compiler.compiled() == 2


def test_another_version_of_the_sources_is_another_cache(cache, monkeypatch, tmp_path):
    copy = tmp_path / "libintercept"
    (copy / "values").mkdir(parents=True)
    for path in values_recipe._source_files():
        target = copy / path.relative_to(values_recipe.sources())
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    monkeypatch.setattr(values_recipe, "sources", lambda: copy)
    assert values_libraries.cache_folder() == cache
    with open(copy / "values" / "run.cpp", "a") as file:
        file.write("\n")
    assert values_libraries.cache_folder() != cache


def test_the_sources_include_nothing_else_of_ours():
    """What an installed package must bring is known from the recipe."""
    names = {
        str(path.relative_to(values_recipe.sources())) for path in values_recipe._source_files()
    }
    included = {
        line.split('"')[1]
        for path in values_recipe._source_files()
        for line in path.read_text().splitlines()
        if line.startswith('#include "')
    }
    assert included <= names
    compiled = {name for name in included if name.endswith(".cpp")}
    assert compiled == {name for name in names if name.endswith(".cpp")} - {"values/unity.cpp"}


def test_a_package_without_sources_says_so(monkeypatch, tmp_path, torch, compiler):
    monkeypatch.setattr(values_recipe, "_PACKAGE", tmp_path)
    with pytest.raises(CannotCompile, match="the sources of the values library are not in"):
        values_recipe.check(values_recipe.read_torch(torch), None)
    assert values_libraries.find(VERSION) is None


# ---- which torch a job imports ----


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A folder that looks like a virtual environment with a torch."""
    home = tmp_path / "venv"
    make_torch(home / "lib" / "python3.11" / "site-packages" / "torch")
    (home / "bin").mkdir()
    (home / "bin" / "python").symlink_to(sys.executable)
    (home / "bin" / "torchrun").write_text("#!/bin/sh\n")
    (home / "bin" / "torchrun").chmod(0o755)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return home


def test_torch_is_that_of_the_command_s_environment(environment, tmp_path, monkeypatch):
    expected = environment / "lib" / "python3.11" / "site-packages" / "torch"
    python = environment / "bin" / "python"
    script = tmp_path / "train"
    script.write_text(f"#!{python}\n")
    script.chmod(0o755)
    for program, words in (
        (python, ()),
        (script, ()),
        ("/bin/env", ("env", "A=1", python, "train.py")),
        ("/bin/nice", ("nice", "-n", "5", script)),
    ):
        assert installation.find_torch(str(program), [str(word) for word in words]) == expected
    monkeypatch.setenv("PATH", f"{environment / 'bin'}:/usr/bin:/bin")
    assert installation.find_torch("/bin/bash", ("bash", "run.sh")) == expected


def test_a_python_outside_of_environments_is_asked(environment, tmp_path):
    (tmp_path / "usr").mkdir()
    system = tmp_path / "usr" / "python3"
    there = environment / "lib" / "python3.11" / "site-packages"
    system.write_text(f'#!/bin/sh\nPYTHONPATH={there} exec {sys.executable} "$@"\n')
    system.chmod(0o755)
    assert installation._ask(str(system)) == there / "torch"


# ---- a whole run ----


def run_with(launch, torch, compiler, tmp_path, *command, **variables):
    return launch(
        "--isolation", "none", "--nnodes", 1, "--gpus-per-node", 1, "--",
        *command,
        env={"XDG_CACHE_HOME": str(tmp_path / "cache"), **variables},
        within=lambda words: [
            "env", f"PYTHONPATH={torch.parent}:{os.getcwd()}", *words
        ],
    )  # fmt: skip


def test_the_first_run_compiles_and_the_second_does_not(launch, torch, compiler, tmp_path):
    said = f"phantora-ns: compiling the values library for torch {VERSION}, once ... "
    code, _, err = run_with(launch, torch, compiler, tmp_path, "true").finish()
    lines = [line for line in err.splitlines() if line.startswith(said)]
    assert code == 0 and len(lines) == 1 and lines[0].removeprefix(said).endswith(" s"), err
    code, _, err = run_with(launch, torch, compiler, tmp_path, "true").finish()
    assert code == 0 and "compiling" not in err and compiler.compiled() == 1


def test_a_job_runs_without_what_cannot_be_compiled(launch, torch, compiler, tmp_path):
    compiler.program("if '-c' in sys.argv: sys.exit('error: no such header')")
    told = 'cat "$PHANTORA_VALUES_LIB"/*.txt'
    code, out, err = run_with(launch, torch, compiler, tmp_path, "sh", "-c", told).finish()
    assert code == 0 and "once ... failed" in err
    assert out.startswith("its compilation failed (") and out.endswith(".log)\n")
    code, out, err = run_with(launch, torch, compiler, tmp_path, "sh", "-c", told).finish()
    assert code == 0 and "compiling" not in err and "tries again" in out
    code, out, err = run_with(
        launch, torch, compiler, tmp_path, "sh", "-c", told, PHANTORA_COMPILE_VALUES="0"
    ).finish()
    assert code == 0 and "compiling" not in err and "forbids its compilation" in out


def test_a_signal_ends_the_compilation(launch, torch, compiler, tmp_path):
    started = tmp_path / "started"
    os.mkfifo(started)
    compiler.program(f"if '-c' in sys.argv: open({str(started)!r}, 'w').close(); time.sleep(1000)")
    run = run_with(launch, torch, compiler, tmp_path, "true")
    with open(started):
        pass
    os.kill(run.process.pid, signal.SIGINT)
    code, _, err = run.finish(timeout=30)
    assert code == 130 and "once ... stopped" in err and "SIGINT" in err


def test_compile_values_takes_a_python_or_torch_s_folder(torch, compiler, cache, package, capsys):
    assert compile_values(str(torch)) == 0
    assert str(cache / library_name(VERSION)) in capsys.readouterr().err
    with pytest.raises(UsageError, match="neither a Python nor torch's folder"):
        compile_values("no-such-python")
    with pytest.raises(UsageError, match="there is no torch in"):
        compile_values(str(torch.parent))
