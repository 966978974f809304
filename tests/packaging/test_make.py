"""Why it exists: `make` promises a newcomer short lines, a second build that does nothing,
builds that wait for each other, and a notice in place of a broken build."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack

import pytest

from phantora_ns.config.versions import supported_versions

SHORT = re.compile(r"^  ([A-Z]+) +(\S+)$", re.M)


def command(root, *arguments, **variables):
    environment = {
        k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    words = [
        "make",
        "-C",
        root,
        *arguments,
        *(f"{name}={value}" for name, value in variables.items()),
    ]
    return {"args": words, "env": environment, "text": True}


def make(root, *arguments, **variables):
    return subprocess.run(
        **command(root, *arguments, **variables), capture_output=True, timeout=170, check=False
    )


@pytest.fixture
def compiler(tmp_path):
    """A compiler that makes empty files, and a line for each in `compiled`; with a fifo `wait`
    there, it waits for that."""
    script = tmp_path / "compiler"
    script.write_text(f"""#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo "$2" >>{tmp_path}/compiled
echo "warning: $2 is doubtful" >&2
[ ! -p {tmp_path}/wait ] || read line <{tmp_path}/wait
echo >"$2"
""")
    script.chmod(0o755)
    return {
        "CC": script,
        "CXX": "no-such-compiler",
        "LIB": tmp_path / "lib",
        "OBJ": tmp_path / "obj",
    }


@pytest.mark.nightly
def test_a_second_build_does_nothing(root, tmp_path):
    where = {"LIB": tmp_path / "lib", "OBJ": tmp_path / "obj", "CXX": "no-such-compiler"}
    first = make(root, "native", **where)
    assert first.returncode == 0, first.stderr
    assert {"libphantora.so", "phantora-sandbox", "libphantora-flows.so"} <= {
        path.name for path in (tmp_path / "lib").iterdir()
    }
    assert ("CC", "libintercept/base/lookup.c") in SHORT.findall(first.stdout)
    second = make(root, "native", **where)
    assert second.returncode == 0
    assert SHORT.findall(second.stdout) == [], second.stdout


def test_a_build_prints_a_short_line_for_each_file_and_what_the_compiler_says(root, compiler):
    short = make(root, "native", **compiler)
    found = SHORT.findall(short.stdout)
    assert {kind for kind, _ in found} == {"CC", "LINK"} and str(compiler["CC"]) not in short.stdout
    assert short.stderr.count("is doubtful") == len(found)
    full = make(root, "native", V=1, **{**compiler, "OBJ": compiler["OBJ"].with_name("other")})
    assert SHORT.findall(full.stdout) == [] and len(
        re.findall(rf"^{compiler['CC']} +-", full.stdout, re.M)
    ) == len(found)


def test_the_demo_s_build_prints_no_line_for_a_file(root, compiler):
    done = make(root, "native", BRIEF=1, **compiler)
    assert done.returncode == 0 and SHORT.findall(done.stdout) == []


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_demo_is_short_and_says_where_to_look_next(root, tmp_path, built_library):
    browsers = ("xdg-open", "sensible-browser", "x-www-browser", "firefox", "chromium")
    for name in browsers:
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/opened\n")
        (tmp_path / name).chmod(0o755)
    started = command(root, "--no-print-directory", "demo")
    started["env"] |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BROWSER": tmp_path / "xdg-open"}
    done = subprocess.run(
        **started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1100, check=False
    )
    lines = done.stdout.splitlines()
    steps = [number for number, line in enumerate(lines) if line.startswith("step ")]
    assert done.returncode == 0 and len(steps) == 6, done.stdout
    assert steps[0] <= 15
    assert all(lines[number].endswith("loss not computed") for number in steps)
    after = lines[lines.index("What next:") :]
    assert "build/demo.html" in after[1] and "docs/tutorial.md" in after[-1]
    assert not (tmp_path / "opened").exists()


def test_two_builds_of_one_folder_take_turns(root, compiler, tmp_path):
    """The first stops at its first file until the second has said that it waits, or has begun to
    compile."""
    wait, compiled = tmp_path / "wait", tmp_path / "compiled"
    os.mkfifo(wait)
    with ExitStack() as stack:
        builds = [
            stack.enter_context(
                subprocess.Popen(
                    **command(root, "native", **compiler),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        ]
        assert any("CC" in line for line in builds[0].stdout)  # it holds the lock
        builds.append(
            stack.enter_context(
                subprocess.Popen(
                    **command(root, "native", **compiler),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            )
        )
        said = builds[1].stderr.readline()
        with wait.open("w") as gate:
            wait.unlink()
            gate.write("go\n")
        for build in builds:
            build.communicate(timeout=170)
            assert build.returncode == 0
    assert said == f"phantora-ns: waiting for another build in {compiler['OBJ']}\n"
    files = compiled.read_text().splitlines()
    assert len(files) == len(set(files)) > 100


@pytest.mark.parametrize(
    "variables, reason",
    [
        (
            {"CXX": "no-such-compiler"},
            "no C++ compiler: no-such-compiler was not found; install g++, or name one in CXX",
        ),
        ({"TORCH_PYTHON": "no-such-python"}, "no torch in the environment of no-such-python"),
    ],
    ids=["compiler", "torch"],
)
def test_the_values_library_is_left_out_with_a_notice(root, tmp_path, variables, reason):
    done = make(root, "values", LIB=tmp_path / "lib", OBJ=tmp_path / "obj", **variables)
    assert done.returncode == 0
    assert f"the values library is left out ({reason})" in done.stderr
    assert not list((tmp_path / "lib").iterdir())


def test_a_python_that_is_too_old_is_named(root, tmp_path):
    old = tmp_path / "python-of-old"
    old.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 1\necho "Python 3.8.1"\n')
    old.chmod(0o755)
    done = make(root, "venv", PYTHON=old, VENV=tmp_path / "venv")
    assert done.returncode != 0
    assert "phantora-ns needs Python 3.11 or later" in done.stderr and "Python 3.8.1" in done.stderr


def test_transformer_engine_says_which_torch_it_needs(root, tmp_path):
    """This environment is Python alone, and has no CUDA toolkit, as one with torch 2.9 has none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    for stamp in ("python", "torch", "project", "frameworks"):
        (tmp_path / "venv" / f".stamp-{stamp}").touch()
    done = make(root, "transformer-engine", VENV=tmp_path / "venv")
    assert done.returncode == 2
    assert done.stderr.startswith("Transformer Engine is compiled here beside a torch with CUDA 13")
    assert "Traceback" not in done.stderr


@pytest.fixture
def recording_venv(tmp_path):
    """An environment with torch, as far as its stamps say, whose Python does nothing but write down its words."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/words\n')
    python.chmod(0o755)
    for stamp in ("python", "torch"):
        (tmp_path / "venv" / f".stamp-{stamp}").touch()

    def words():
        path = tmp_path / "words"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    return tmp_path / "venv", words


def test_only_targets_that_run_pytest_install_what_it_needs(root, compiler, recording_venv):
    venv, words = recording_venv
    for target in ("build", "frameworks"):
        assert make(root, target, VENV=venv, **compiler).returncode == 0
    built = words()
    assert any(line.endswith("--editable .") for line in built)
    assert not any("[test]" in line or "hta-requirements" in line for line in built)
    assert make(root, "test", VENV=venv, **compiler).returncode == 0
    *_, packages, hta, tests = words()
    assert packages.endswith("--editable .[test]") and "hta-requirements" in hta
    assert tests.startswith("-m pytest")
    assert make(root, "test", VENV=venv, **compiler).returncode == 0
    assert not any("pip" in line for line in words())


@pytest.mark.parametrize("target", ["smoke", "truth", "test", "test-all", "bench-micro"])
def test_a_target_that_runs_pytest_installs_it_first(root, compiler, recording_venv, target):
    venv, words = recording_venv
    done = make(root, "-j2", target, VENV=venv, **compiler)
    assert done.returncode == 0 and "jobserver" not in done.stderr
    said = words()
    at = next(n for n, line in enumerate(said) if line.endswith("--editable .[test]"))
    assert at < next(n for n, line in enumerate(said) if line.startswith("-m pytest"))


def test_the_default_torch_is_the_newest_that_is_supported(root, tmp_path):
    newest = supported_versions().releases[0].torch
    done = make(root, "-n", "venv", VENV=tmp_path / "venv")
    assert f"pip install --quiet 'torch=={newest}'" in done.stdout
    other = make(root, "-n", "venv", VENV=tmp_path / "venv", TORCH="torch==2.9.1")
    assert "pip install --quiet 'torch==2.9.1'" in other.stdout


def test_make_frameworks_ends_with_what_to_do_next(root, compiler, recording_venv):
    """It ended with the compiler's lines. `make test` installs frameworks too, and goes on."""
    venv, _ = recording_venv
    done = make(root, "frameworks", VENV=venv, **compiler)
    last = done.stdout.rstrip().splitlines()[-2:]  # make says by itself which folder it leaves
    said = next(line for line in last if line.startswith("What next: "))
    assert f"source {venv}/bin/activate" in said
    named = next(word for word in said.split() if word.endswith(".md"))
    assert (root / named).is_file()
    assert "What next" not in make(root, "test", VENV=venv, **compiler).stdout
