"""`phantora-ns kernels ...`: looks into kernel-time databases, compares and merges them.

Why it exists: it holds only the click commands of this group. cli.py imports it only on demand,
because its imports would add start-up time to every job. A further command of the group is one more
`@kernels.command()` here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from phantora_ns.kernels.database import databases, interchange, listing
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.schema import DatabaseError
from phantora_ns.kernels.database.writer import save
from phantora_ns.kernels.evaluation.trace_launches import TraceError
from phantora_ns.launch.errors import EXIT_USAGE, UsageError, say

_FILE = click.Path(path_type=Path)


def _output(what: str) -> Callable[[Callable], Callable]:
    """The option that names the database which a command writes."""
    return click.option(
        "-o",
        "--output",
        "out",
        required=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="OUT",
        help=what,
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def kernels() -> None:
    """Looks into kernel-time databases, compares and merges them."""


@contextmanager
def _opened(path: Path | None) -> Iterator[Database]:
    """Opens the named file, or the only existing database. A problem with it is a usage error."""
    try:
        with Database.open(path or _only()) as database:
            yield database
    except DatabaseError as error:
        raise UsageError(str(error)) from error


def _only() -> Path:
    found = databases.every_path()
    if not found:
        raise UsageError(
            f"there is no kernel-time database; in {databases.user_folder()}; name one, or record one with "
            "phantora-ns profile"
        )
    if len(found) > 1:
        raise UsageError(
            f"there are {len(found)} kernel-time databases; on the command line; name one of those that "
            "phantora-ns kernels list shows"
        )
    return found[0]


def _refuse_existing(out: Path, cure: str) -> None:
    if out.exists():
        raise UsageError(f"{out} exists already; on the command line; {cure}")


@kernels.command("list")
@click.argument("files", nargs=-1, type=_FILE)
@click.option(
    "--runs", is_flag=True, help="Also list each file's runs, with where they took place."
)
def list_(files: tuple[Path, ...], runs: bool) -> int:
    """Lists databases: FILES, or your own and those that ship."""
    paths = list(files) or databases.every_path()
    if not paths:
        click.echo(
            f"no kernel-time databases: none ships, and none is in {databases.user_folder()}"
        )
        return 0
    status = 0
    click.echo(listing.summary_header())
    for path in paths:
        try:
            with Database.open(path) as database:
                click.echo(listing.summary_line(database))
                for line in listing.run_lines(database) if runs else ():
                    click.echo(line)
        except DatabaseError as error:
            say(str(error))
            status = EXIT_USAGE
    return status


@kernels.command()
@click.argument("file", required=False, type=_FILE)
@click.option(
    "--family", metavar="F", help="Only this family, such as gemm, attention, elementwise."
)
@click.option("--operator", metavar="O", help="Only launches of this operator, such as aten::mm.")
@click.option("--match", metavar="TEXT", help="Only signatures with this text in them.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=30,
    show_default=True,
    metavar="N",
    help="Rows to show; 0: all.",
)
@click.option("--wide", is_flag=True, help="Do not cut signatures.")
def show(
    file: Path | None,
    family: str | None,
    operator: str | None,
    match: str | None,
    limit: int,
    wide: bool,
) -> int:
    """Shows the signatures in FILE: how often they were measured, and how long they take.

    Those with most measured time come first. FILE may be left out when there is only one.
    """
    with _opened(file) as database:
        found = filter(listing.Filter(family, operator, match), database.signatures())
        _print(listing.signature_lines(found, limit, None if wide else listing.WIDTH))
    return 0


@kernels.command()
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@click.option(
    "--worst",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="Also list the N signatures that differ by most time.",
)
def diff(a: Path, b: Path, worst: int) -> int:
    """Compares the times of the signatures that both A and B hold, by family."""
    with _opened(a) as one, _opened(b) as other:
        _print(listing.difference_lines(one, other, worst))
    return 0


@kernels.command()
@click.argument("files", nargs=-1, required=True, type=_FILE)
@_output("The file to write; it may be one of FILES.")
def merge(files: tuple[Path, ...], out: Path) -> int:
    """Writes all runs of FILES into one database.

    A run that several files hold is taken once. The same runs make the same bytes, whatever the
    order of FILES.
    """
    if out.resolve() not in {path.resolve() for path in files}:
        _refuse_existing(out, "choose another name, or name it among the files to merge into it")
    _do(lambda: databases.merge(out, files))
    with _opened(out) as database:
        click.echo(f"{listing.summary_header()}\n{listing.summary_line(database)}")
    return 0


@kernels.command()
@click.argument("file", type=_FILE)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    show_default=True,
    help="jsonl: everything, for `kernels import`; csv: a table of the samples, for people.",
)
@click.option(
    "-o",
    "--output",
    "out",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    metavar="OUT",
    help="The file to write  [default: standard output]",
)
def export(file: Path, form: str, out: str) -> int:
    """Writes FILE as text."""
    if out != "-":
        _refuse_existing(Path(out), "choose another name, or remove it")
    with _opened(file) as database:
        try:
            with click.open_file(out, "w", encoding="utf-8") as to:
                if form == "csv":
                    interchange.export_table(database, to)
                else:
                    to.writelines(interchange.export_lines(database))
                to.flush()
        except BrokenPipeError:
            # The reader, such as `head`, has read enough. Click ends the process with 1, silently.
            raise
        except OSError as error:
            raise UsageError(
                f"{out}: cannot be written: {error.strerror}; on the command line; choose another name"
            ) from error
    return 0


@kernels.command("import")
@click.argument("file", type=click.Path(allow_dash=True))
@_output("The database to write; it must not exist yet.")
def import_(file: str, out: Path) -> int:
    """Makes a database of FILE, which `kernels export` wrote as jsonl; - is standard input."""
    _refuse_existing(out, "choose another name, and merge the two")
    try:
        with click.open_file(file, encoding="utf-8") as lines:
            gpu, runs = _do(lambda: interchange.read_lines(lines, file))
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be read: {error.strerror}; on the command line; name a file"
        ) from error
    _do(lambda: save(out, gpu, runs))
    return 0


@kernels.command()
@click.argument("files", nargs=-1, type=_FILE)
@click.option(
    "--judge",
    multiple=True,
    type=_FILE,
    metavar="FILE",
    help="Judge on FILE what FILES tell, instead of leaving out.",
)
@click.option(
    "--by",
    type=click.Choice(["family", "configuration"]),
    default="family",
    show_default=True,
    help="What a row is.",
)
@click.option("--gpu", metavar="MODEL", help="GPU of traces  [default: the databases', else h200]")
@click.option(
    "--worst",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Also list the N that cost most accuracy.",
)
def validate(
    files: tuple[Path, ...], judge: tuple[Path, ...], by: str, gpu: str | None, worst: int
) -> int:
    """Prints how far models are from times that they have not seen.

    FILES are databases, or Kineto traces of real steps. Each configuration in them is left out in
    turn, and what the others have not measured exactly is predicted from them. FILES may be left
    out when there is only one database.
    """
    from phantora_ns.config import ConfigError

    # As in the hub (launch/run/hub_process.py).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from phantora_ns.kernels.evaluation import validation

    try:
        _print(validation.lines(list(files) or [_only()], gpu, judge, by == "configuration", worst))
    except (validation.ValidationError, DatabaseError, TraceError, ConfigError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"{error.filename}: cannot be read: {error.strerror}; on the command line; name a file"
        ) from error
    return 0


def _do(action: Callable):
    try:
        return action()
    except DatabaseError as error:
        raise UsageError(str(error)) from error


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(line)


def main(arguments: list[str]) -> int:
    """Runs `phantora-ns kernels ARGUMENTS...` and returns the exit code. Raises UsageError and
    click's exceptions."""
    return kernels.main(args=arguments, prog_name="phantora-ns kernels", standalone_mode=False) or 0
