"""`--help` with the common options, `--help-all` with all of them, and completion in shells.

Why it exists: a run has thirty options, and a first reader needs ten. Rules: an option is common when
it has a short text; the long text of every option stands in run_options.py and nowhere else. A command is
rare when its class says so (`RareCommand`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_ALL = f"{__name__}.all"
COMPLETION_VARIABLE = "_PHANTORA_NS_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


class RunOption(click.Option):
    """An option of a run. `short`: its text in `--help`; None: only `--help-all` shows it."""

    def __init__(self, *arguments: Any, short: str | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.short = short


class RareCommand(click.Command):
    """A command that `--help` leaves out and `--help-all` lists. Shells complete it all the same."""


class ShortHelp(click.Command):
    """A command whose `--help` leaves out the run's rarer options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, and where the others are."""
        if ctx.meta.get(_ALL):
            super().format_options(ctx, formatter)
            return
        records = []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                continue  # the usage has it
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, RunOption):
                if parameter.short is None:
                    continue
                record = (record[0], parameter.short) if record else None
            if record is not None:
                records.append(record)
        with formatter.section("Options"):
            formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class ShortHelpGroup(ShortHelp, click.Group):
    """For a group whose `COMMAND` is first of all a job's; its own commands have a section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, those that are rare only where all is shown."""
        shown = {
            name: command
            for name, command in sorted(self.commands.items())
            if not command.hidden and (ctx.meta.get(_ALL) or not isinstance(command, RareCommand))
        }
        limit = formatter.width - 6 - max(map(len, shown))
        with formatter.section("Commands of its own"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit)) for name, command in shown.items()]
            )


class ShortHelpCommand(ShortHelp):
    """For a command that is no group."""


def _print_all(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def help_all(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a command with `--help-all`."""
    return click.option(
        "--help-all",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_all,
        help="Show everything and exit.",
    )(command)


def completion_script(command: click.Command, shell: str) -> str:
    """What a shell evaluates so that it completes `phantora-ns`."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None  # SHELLS are those that click knows
    return found(command, {}, "phantora-ns", COMPLETION_VARIABLE).source()


def complete_cluster(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
    """Names of clusters, and files."""
    from click.shell_completion import CompletionItem

    from phantora_ns.config import ConfigError, list_clusters

    try:
        names = [CompletionItem(name) for name in list_clusters() if name.startswith(begun)]
    except ConfigError:
        names = []
    return names or [CompletionItem(begun, type="file")]
