"""Which release of NCCL the job has, and whose choices the simulation makes.

Why it exists: NCCL's choices of algorithm, protocol and channels change with its releases, and the
job's own decides. It is known when the first communicator forms, before any plan is made. Rule: one
release for the whole run, and a guess is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phantora_ns.config.nccl import measured_version, nearest_version
from phantora_ns.hub.diagnostics import Diagnostics
from phantora_ns.model.nccl import NcclVersion
from phantora_ns.protocol import DiagnosticKind


class MixedReleases(Exception):
    """Ranks of one run have different releases of NCCL; the text says which."""


class NcclRelease:
    """The release of a run. `choose` is told, once, whose choices are made: a release of
    config.nccl.nccl_versions()."""

    def __init__(
        self, diagnostics: Diagnostics, choose: Callable[[NcclVersion], None] = lambda known: None
    ) -> None:
        self._diagnostics = diagnostics
        self._choose = choose
        self._code: int | None = None
        self._first = ""
        self.choices: NcclVersion | None = None
        """Whose choices are made; None before the first communicator."""

    @property
    def version(self) -> NcclVersion | None:
        """The job's own release; None while it is not known."""
        return NcclVersion.of_code(self._code) if self._code else None

    def meet(self, members: Sequence[tuple[str, int]]) -> None:
        """A communicator forms: (name, NCCL_VERSION_CODE or 0) of each member. Raises
        MixedReleases."""
        if self._code is None:
            self._first, self._code = members[0]
        for name, code in members:
            if code != self._code:
                raise MixedReleases(
                    f"ranks have different versions of NCCL: {self._first} has "
                    f"{_named(self._code)}, {name} has {_named(code)}; NCCL does not connect them, "
                    "so give all ranks one environment"
                )
        if self.choices is None:
            version = self.version
            self.choices = nearest_version(version) if version else measured_version()
            self._choose(self.choices)
        self._notice()

    def _notice(self) -> None:
        """Counts a communicator whose choices are another release's than the job's."""
        version, choices = self.version, self.choices
        assert choices is not None
        if version is None:
            text = f"the job's NCCL was not found; its choices are taken to be those of {choices}"
        elif version.minor_text != choices.minor_text:
            text = f"NCCL {version} is not known; its choices are taken to be those of {choices}"
        else:
            return
        self._diagnostics.add(DiagnosticKind.WARNING, text)


def _named(code: int) -> str:
    return str(NcclVersion.of_code(code)) if code else "none that could be found"
