"""`KernelTimes`: how long a kernel or library call takes on one GPU model.

Why it exists: a measured time is best, but most jobs launch something that nobody has measured. The
hub asks here, and gets an answer for any signature, in this order: the exact signature; the same
launch whatever its identity, when its recorded variants agree; a model fitted to what was measured;
an estimate. Every answer says where it came from, so that the report can count it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from phantora_ns.config import load_gpu
from phantora_ns.kernels import rates, signature
from phantora_ns.kernels.database.database import Database, DatabaseError, Scale, unscaled
from phantora_ns.kernels.estimators import (
    attention,
    batch_norm,
    calls,
    copies,
    cudnn_graphs,
    gemm,
    launch,
    spin,
)
from phantora_ns.kernels.estimators.launch import Estimate
from phantora_ns.kernels.fitted.kept import Keep, KeptFits, make_always
from phantora_ns.kernels.fitted.predictor import FittedPredictor, Scaled
from phantora_ns.kernels.library_versions import LibraryVersions
from phantora_ns.kernels.live_times import Learned, LiveTimes
from phantora_ns.kernels.run_clocks import LiveClock, RunClocks
from phantora_ns.kernels.signature import Gemm, Memory, SignatureError
from phantora_ns.model.gpu import GpuModel
from phantora_ns.protocol import BoundBy, SignatureKind, Source

if TYPE_CHECKING:
    from phantora_ns.kernels.fitted.model import Prediction

Answer = TypeVar("Answer", "Prediction", "Estimate", "Prediction | Estimate")
EXACT, VARIANTS = 0, 1
MANY_TIMES = 4
"""So many times as many kernels of a function one GPU must have measured for its fit to be the better one. A few
more say nothing: they may be of another layout, which no signature holds."""
LEAST_RUNS = 3
"""Runs that must have recorded equal launches over lists for their means to say what one takes."""
LONGEST_NS = 1 << 40
"""18 minutes. A longer time comes from a nonsensical size in a signature, and would carry the clock
of the rank away."""
CACHE_ENTRIES = 1 << 18


class KernelTimes:
    """Durations for one GPU model.

    `gpu` is a GpuModel or its name; `databases` are Database objects or paths, asked in order. Some
    may be of the GPU that the data file of `gpu` names as similar (`like`, `also`). What the others do not
    hold is scaled from these (Scaled), and `scaled_from` names that GPU. `versions`: the job's, None
    when they are not known. `fits`: the folder in which fitted models are kept between runs, None to
    fit anew. Raises ConfigError for a GPU without efficiencies, and DatabaseError for a file that
    cannot be read or is of another GPU.
    """

    def __init__(
        self,
        gpu: GpuModel | str,
        databases: Iterable[Database | Path | str] = (),
        versions: LibraryVersions | None = None,
        fits: Path | None = None,
    ):
        self.rates = rates.load(gpu) if isinstance(gpu, str) else rates.of(gpu)
        power = (load_gpu(gpu) if isinstance(gpu, str) else gpu).power
        opened = [d if isinstance(d, Database) else Database.open(d) for d in databases]
        alike = [d for d in opened if d.gpu == self.rates.scaled_from]
        self.scaled_from = self.rates.scaled_from if alike else None
        self.databases = [d for d in opened if d not in alike]
        for database in self.databases:
            if database.gpu != self.rates.model:
                raise DatabaseError(
                    f"{database.path}: holds times of {database.gpu!r}, not of {self.rates.model!r}; "
                    "choose the simulated GPU's file"
                )
        self.clocks = RunClocks(power, self.databases, self._bound_of)
        keep: Keep = make_always
        if fits is not None:
            keep = KeptFits(fits, [d.path for d in self.databases], self.rates, power)
        self._predictor = (
            FittedPredictor(self.databases, self.rates, self.estimate, self.clocks.share, keep)
            if self.databases
            else None
        )
        self._other: KernelTimes | None = None
        if self.scaled_from:
            self._other = KernelTimes(self.scaled_from, alike, fits=fits)
            self._to_here = Scaled(self._other.estimate, self.estimate, self.rates.scaled_share)
        self.scaled = 0  # signatures answered by another GPU model's times
        self.unmeasured = not self.databases  # it has none but those of another GPU model
        self.renamed = 0  # kernels found under the name that another release of PyTorch gives them
        self._answers: dict[Any, tuple[int, int, int]] = {}
        self._parts: dict[tuple[Path, bytes], list[float]] = {}
        self._live = LiveTimes()
        self._live_clock = LiveClock(power)
        self.versions = versions
        self.other_versions: set[LibraryVersions] = set()
        """Those of records that answered and that were not made under the job's."""
        self._elsewhere: set[bytes] = set()

    def lookup(
        self, kind: int, fields: Any, context: Any = None, parameters: bytes | None = None
    ) -> tuple[int, int, int]:
        """(duration_ns, source, bound_by) of a signature. The duration is at least 1 ns, and no input
        raises.

        `fields`, `context` and `parameters` are as in docs/wire-protocol.md. O(1) for a signature
        that was asked for before, else an SQLite look-up and some arithmetic.
        """
        try:
            token = signature.encode(kind, fields), signature.encode(0, [context])
        except SignatureError:
            return self._whole(self._guess())
        live_ns = self._live.duration_ns(token[0])
        if live_ns is not None:
            bound_by = self._bound_of(kind, fields)
            return self._whole(
                Estimate(live_ns * self._live_clock.share(bound_by), EXACT, bound_by)
            )
        answer = self._answers.get(token)
        if answer is None:
            if kind == SignatureKind.KERNEL and spin.cycles(fields) is not None:
                answer = self._whole(self.estimate(kind, fields))
            else:
                answer = self._measured(token[0], kind, fields, context, parameters)
            answer = answer or self._whole(self._model(kind, fields, context, parameters))
            if len(self._answers) >= CACHE_ENTRIES:
                self._answers.clear()
                self._elsewhere.clear()
            self._answers[token] = answer
        return answer

    def recorded_elsewhere(self, kind: int, fields: Any) -> bool:
        """Whether the last answer for a signature was recorded under other library versions than
        the job's, in all the runs that measured it."""
        try:
            data = signature.encode(kind, fields)
        except SignatureError:
            return False
        return data in self._elsewhere and self._live.duration_ns(data) is None

    def recorded_ns(
        self, kind: int, fields: Any, context: Any = None, parameters: bytes | None = None
    ) -> int | None:
        """What a database holds of a signature, or of the same launch under another one. Raises
        SignatureError."""
        found = self._measured(signature.encode(kind, fields), kind, fields, context, parameters)
        return None if found is None else found[0]

    def fitted(
        self, kind: int, fields: Any, context: Any = None, parameters: bytes | None = None
    ) -> Prediction | None:
        """What follows from this GPU's measurements of other signatures, for another GPU's KernelTimes."""
        if self._predictor is None:
            return None
        found = self._predictor.predict(kind, fields, context, parameters)
        return found and self._at_most_parts(found, kind, fields)

    def _model(
        self, kind: int, fields: Any, context: Any, parameters: bytes | None
    ) -> Prediction | Estimate:
        """What follows from measurements, else the estimate: what another GPU has recorded of this signature;
        what is fitted to the recordings of this GPU or of that one."""
        work = kind, fields, context, parameters
        there_ns: float | None = self._other.recorded_ns(*work) if self._other else None
        fitted = None
        if there_ns is None:
            fitted = self._predictor.predict(*work) if self._predictor else None
            theirs = self._other.fitted(*work) if self._other else None
            if theirs is not None and self._better(theirs, fitted):
                there_ns = theirs.duration_ns
        scaled = self._to_here.here(there_ns, *work) if there_ns is not None else None
        self.scaled += scaled is not None
        return self._at_most_parts(scaled or fitted or self.estimate(*work), kind, fields)

    def _better(self, theirs: Prediction, own: Prediction | None) -> bool:
        """Whether to take the other GPU's: both take those of the GPU whose shares of peak they have, but where the
        other one has measured many times as much."""
        if own is None:
            return True
        if self.rates.own_shares:
            return theirs.points > MANY_TIMES * own.points
        return own.points <= MANY_TIMES * theirs.points

    def _at_most_parts(self, answer: Answer, kind: int, fields: Any) -> Answer:
        most_ns = self._parts_ns(fields) if kind == SignatureKind.KERNEL else math.inf
        return replace(answer, duration_ns=most_ns) if answer.duration_ns > most_ns else answer

    def _parts_ns(self, fields: Any) -> float:
        """What the blocks of a foreach launch take in launches of an earlier PyTorch, which moved
        fewer at a time: one launch is no slower than its parts one after the other. Infinite for
        other launches, and where no part was measured."""
        parts = launch.parts(fields)
        for database in self.databases if parts else ():
            name = database.recorded_name(parts.fields[0]) or parts.fields[0]
            part_ns = self._part_ns(database, [name, *parts.fields[1:]], least_runs=1)
            if part_ns is not None:
                return part_ns * parts.count
        return math.inf

    def measured(self, kind: int, fields: Any) -> bool:
        """Whether exactly this signature has been measured, in a database or by a leader of this run.
        O(log n)."""
        try:
            data = signature.encode(kind, fields)
        except SignatureError:
            return False
        return self._live.duration_ns(data) is not None or self._exact(data) is not None

    def learn(self, kind: int, fields: Any, durations_ns: list[int]) -> Learned:
        """Takes in what a leader has just measured. Returns whose answers of `lookup` change.

        The signature's own does not where a database holds it, so that a run repeats without its
        leader. Such times say what the clock of the leader's GPU is. Raises SignatureError.
        """
        data = signature.encode(kind, fields)
        bound_by = self._bound_of(kind, fields)
        recorded_ns = self._exact(data, self._at_usual_clock(bound_by))
        if recorded_ns is None:
            return Learned.THIS if self._live.add(data, durations_ns) else Learned.NOTHING
        moved = durations_ns and self._live_clock.compare(
            bound_by, data, round(recorded_ns), durations_ns
        )
        return Learned.ALL if moved else Learned.NOTHING

    def _exact(self, data: bytes, scale: Scale = unscaled) -> float | None:
        """The recorded duration of exactly this signature in ns, of the first database that holds
        it."""
        found = (database.exact(data, scale) for database in self.databases)
        return next((ns for ns in found if ns is not None), None)

    def _at_usual_clock(self, bound_by: int) -> Scale:
        """Each run had a clock of its own."""
        return partial(self.clocks.share, bound_by)

    def _bound_of(self, kind: int, fields: Any) -> int:
        return self.estimate(kind, fields).bound_by

    def estimate(
        self, kind: int, fields: Any, context: Any = None, parameters: bytes | None = None
    ) -> Estimate:
        """What the estimators say of a signature, whatever was measured; a guess for a signature
        that they cannot read."""
        try:
            return self._estimate(kind, fields, context, parameters)
        except (
            SignatureError,
            ArithmeticError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
        ):
            # Sizes and nested lists come from another process. Whatever they break, the answer is a
            # guess, and the report counts it.
            return self._guess()

    def _estimate(self, kind: int, fields: Any, context: Any, parameters: bytes | None) -> Estimate:
        if kind == SignatureKind.KERNEL:
            waits = spin.cycles(fields)
            if waits is not None:
                return Estimate(
                    spin.duration_ns(waits, self.rates), Source.ROOFLINE, BoundBy.MEMORY
                )
            return launch.estimate(
                signature.parse_kernel(fields, parameters),
                launch.context_of(context),
                self.rates,
                fields[11],
            )
        if kind == SignatureKind.GEMM:
            product = signature.parse_numbers(Gemm, fields)
            if min(product.m, product.n, product.k, product.batch) < 0:
                raise SignatureError("negative size")
            return Estimate(
                gemm.duration_ns(product, self.rates), Source.GEMM, self._bound_by(product)
            )
        if kind == SignatureKind.CUDNN:
            return self._graph(fields[0])
        if kind == SignatureKind.MEMORY:
            return Estimate(
                copies.duration_ns(signature.parse_numbers(Memory, fields), self.rates),
                Source.COPY,
                BoundBy.MEMORY,
            )
        if kind == SignatureKind.CALL:
            name, numbers = fields
            norm = batch_norm.parse(name, numbers)
            if norm is not None:
                return Estimate(
                    batch_norm.duration_ns(norm, self.rates), Source.ROOFLINE, BoundBy.MEMORY
                )
            answer = calls.duration_ns(name, numbers, self.rates)
            if answer is not None:
                return Estimate(answer, Source.GUESS, BoundBy.MEMORY)
        return self._guess()

    def _bound_by(self, product: Gemm) -> int:
        """Compute-bound when arithmetic at the peak takes longer than moving the operands. Without
        tensor cores such a product is bound by the issue of instructions, and draws less power."""
        kind = gemm.arithmetic(product)
        arithmetic = gemm.flop(product) / self.rates.peak(kind)
        if arithmetic <= sum(gemm.moved_bytes(product)) / self.rates.memory_bytes_per_ns:
            return BoundBy.MEMORY
        return BoundBy.ISSUE if kind in gemm.WITHOUT_TENSOR_CORES else BoundBy.COMPUTE

    def _graph(self, graph: Any) -> Estimate:
        found = cudnn_graphs.operations(graph)
        call = cudnn_graphs.as_attention(found)
        if call is not None:
            return Estimate(
                attention.duration_ns(call, self.rates), Source.ATTENTION, BoundBy.ATTENTION
            )
        products = [(o, p) for o in found if (p := cudnn_graphs.as_gemm(o)) is not None]
        if products:
            total = sum(
                cudnn_graphs.convolution_ns(o, p, self.rates)
                if o.kind in cudnn_graphs.CONVOLUTION_TENSORS
                else gemm.duration_ns(p, self.rates)
                for o, p in products
            )
            bound_by = max(self._bound_by(p) for _, p in products)
            return Estimate(total, Source.GEMM, bound_by)
        moved = sum(tensor.bytes for tensor in {t for o in found for t in o.tensors.values()})
        if not moved:
            return self._guess()
        return Estimate(self.rates.memory_ns("other", moved), Source.ROOFLINE, BoundBy.MEMORY)

    def _guess(self) -> Estimate:
        return Estimate(self.rates.memory_ns("other", 0), Source.GUESS, BoundBy.MEMORY)

    def _measured(
        self, data: bytes, kind: int, fields: Any, context: Any, parameters: bytes | None
    ) -> tuple[int, int, int] | None:
        if not self.databases:
            return None
        bound_by = self._bound_of(kind, fields)
        scale = self._at_usual_clock(bound_by)
        for database in self.databases:
            duration, source = database.exact(data, scale), Source.EXACT
            if duration is None and kind == SignatureKind.KERNEL:
                duration, source = self._other_launch(database, fields, context, parameters, scale)
            if duration is not None:
                self._compare_versions(database, data)
                return self._whole(Estimate(duration, source, bound_by))
        return None

    def _compare_versions(self, database: Database, data: bytes) -> None:
        """Notes a record that was not made under the job's library versions. Of a launch that was
        found by another signature, the whole file's versions count."""
        if self.versions is None:
            return
        every = database.libraries()
        under = (database.libraries(data) or every) if len(every) > 1 else every
        if under and all(self.versions.differ(other) for other in under):
            self._elsewhere.add(data)
            self.other_versions |= under

    def _other_launch(
        self,
        database: Database,
        fields: Any,
        context: Any,
        parameters: bytes | None,
        scale: Scale,
    ) -> tuple[float | None, Source]:
        """The time of the same launch of a kernel that another release of PyTorch names otherwise,
        or of launches that differ in identity only."""
        own = fields[0] if fields else None
        name = database.recorded_name(own) if isinstance(own, str) else None
        if name is not None:
            fields = [name, *fields[1:]]
            duration = database.exact(signature.encode(SignatureKind.KERNEL, fields), scale)
            if duration is not None:
                self.renamed += 1
                return duration, Source.EXACT
        whole = launch.is_whole_part(fields, parameters)
        duration = self._part_ns(database, fields, LEAST_RUNS) if whole else None
        if duration is None:
            alike = launch.alike(fields, context, parameters)
            duration = database.variants(fields, alike, scale=scale)
        self.renamed += duration is not None and name is not None
        return duration, Source.LAUNCH

    def _part_ns(self, database: Database, fields: Any, least_runs: int) -> float | None:
        """The time in ns of a full launch over lists of tensors (`launch.is_whole_part`): each run's mean of
        such launches, and the median of these means. A single launch says little: within one run they differ by up to
        1.7 times, for reasons that no signature holds, while the means of most runs differ by 1 to 4 %. None when
        fewer than `least_runs` runs have recorded such launches. O(1) after the first of equal launches."""
        key = database.path, signature.encode(SignatureKind.KERNEL, signature.launch_fields(fields))
        if key not in self._parts:
            self._parts[key] = database.means_of_runs(fields)
        means = self._parts[key]
        return statistics.median(means) if len(means) >= least_runs else None

    @staticmethod
    def _whole(estimate: Estimate | Prediction) -> tuple[int, int, int]:
        duration = estimate.duration_ns
        if not math.isfinite(duration):
            return LONGEST_NS, Source.GUESS, estimate.bound_by
        if duration > LONGEST_NS:
            return LONGEST_NS, Source.GUESS, estimate.bound_by
        return max(1, round(duration)), estimate.source, estimate.bound_by
