"""The command line: click commands, their options and help texts, and nothing else."""

from phantora_ns.cli.app import main

__all__ = ["main"]
