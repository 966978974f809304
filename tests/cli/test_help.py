"""The help texts, one file for each command: the first thing that a user reads.

After a change: `python tests/cli/test_help.py` writes the files anew; read the difference.
"""

from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from phantora_ns.cli.app import cli, main
from phantora_ns.cli.kernels import kernels
from phantora_ns.launch.command.options import RunOptions

GOLDEN = Path(__file__).parent / "golden"
WIDTH = 98  # what click makes of a terminal of 100 columns


def commands(command: click.Command, path: tuple[str, ...]):
    """A command and all below it, as (words, command)."""
    if path == ("kernels",):
        command = kernels  # the group that is imported only when it is asked for
    if command.hidden:
        return
    yield path, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(below, (*path, name))


ALL = dict(commands(cli, ()))
LONG = [(), ("profile",), ("fit",), ("sweep",)]
"""Commands with --help-all."""


def help_of(path: tuple[str, ...]) -> str:
    parent = None
    for depth in range(len(path) + 1):
        name = path[depth - 1] if depth else "phantora-ns"
        command = ALL[path[:depth]]
        parent = click.Context(
            command, parent=parent, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH
        )
        parent.help_option_names = ["-h", "--help"]
    return command.get_help(parent) + "\n"


def everything_of(path: tuple[str, ...]) -> str:
    """What --help-all prints."""
    runner = CliRunner()
    done = runner.invoke(cli, [*path, "--help-all"], terminal_width=WIDTH, prog_name="phantora-ns")
    assert done.exit_code == 0, done.output
    return done.output


def file_of(path: tuple[str, ...]) -> Path:
    return GOLDEN / f"{'-'.join(('phantora-ns', *path))}.txt"


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "phantora-ns")
def test_help_is_as_written_down(path):
    assert help_of(path) == file_of(path).read_text()


def all_file_of(path: tuple[str, ...]) -> Path:
    return GOLDEN / f"{'-'.join(('phantora-ns', *path))}--help-all.txt"


@pytest.mark.parametrize("path", LONG, ids=lambda path: " ".join(path) or "phantora-ns")
def test_all_options_are_as_written_down(path):
    assert everything_of(path) == all_file_of(path).read_text()


def test_help_fits_a_screen(capsys, monkeypatch):
    """A terminal of 80 columns and 36 lines. What is rare is behind --help-all, and what is not is there."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 36 and max(map(len, lines)) <= 80
    first = [line.split()[0] for line in lines if line.startswith("  ")]
    for word in ("--cluster", "--html", "--host-time", "--help-all", "fit", "sweep", "doctor"):
        assert word in first
    everything = everything_of(())
    for rare in ("--sync", "--fold", "compile-values", "kernels"):
        assert rare not in first and f"\n  {rare} " in everything


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_script_that_completes(shell):
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0 and "_PHANTORA_NS_COMPLETE" in done.output


@pytest.mark.parametrize(
    "begun, found",
    [
        (["--clu"], "--cluster"),
        (["--cluster", "h200-r"], "h200-rail"),
        (["doc"], "doctor"),
        (["compare", "--fail"], "--fail-if"),
    ],
)
def test_words_are_completed(begun, found):
    complete = BashComplete(cli, {}, "phantora-ns", "_PHANTORA_NS_COMPLETE")
    assert found in [item.value for item in complete.get_completions(begun[:-1], begun[-1])]


def test_every_file_is_a_command():
    expected = {file_of(path).name for path in ALL} | {all_file_of(path).name for path in LONG}
    assert {path.name for path in GOLDEN.iterdir()} == expected


def test_every_option_has_a_help_text():
    for path, command in ALL.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)


def test_the_options_of_a_run_are_the_fields_that_carry_them():
    """Defaults included, so that a run from Python and one from the shell are the same."""
    context = cli.make_context("phantora-ns", ["true"])
    assert {parameter.name for parameter in cli.params if parameter.expose_value} == set(
        RunOptions.__dataclass_fields__
    )
    assert RunOptions(**context.params) == RunOptions()


@pytest.mark.parametrize("path", [(), ("kernels",), ("kernels", "show"), ("profile",)])
def test_the_command_line_prints_it(capsys, monkeypatch, path):
    monkeypatch.setenv("COLUMNS", "100")
    assert main([*path, "--help"]) == 0
    words = capsys.readouterr().out.split()
    assert words == file_of(path).read_text().split()


if __name__ == "__main__":
    for old in GOLDEN.iterdir():
        old.unlink()
    for words in ALL:
        file_of(words).write_text(help_of(words))
    for words in LONG:
        all_file_of(words).write_text(everything_of(words))
