"""What a rank of a folded job must not do, refused where torch.distributed would only wait for ever.

Why it exists: ranks that do not run (docs/folding.md) take part in NCCL's communication, which the hub
simulates. They do not take part in what PyTorch does over real sockets: gloo, and what ranks tell each
other through the store. Here such a use is refused in words. Groups of ranks are checked too, since only
PyTorch knows whom a group holds. Rule: nothing that the job gets from PyTorch changes.
"""

import os
import sys

_C10D = "torch.distributed.distributed_c10d"
_WATCHED = ("torch", _C10D)
_FEW = 8  # ranks of a group that a message names
_SIMULATED = ("nccl", "fake")  # backends; all others use real sockets
# Of ProcessGroup: each may carry tensors for which the group has such a backend.
_OVER_SOCKETS = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "allgather",
    "_allgather_base",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "send",
    "recv",
    "recv_anysource",
)


class Fold:
    """The arithmetic of phantora_ns/model/fold.py, for a process that cannot import it."""

    def __init__(self, text):
        self.period, self.block, self.world, self.last = map(int, text.split(","))
        self.members = self.block // self.period

    def member(self, rank):
        """The number of a rank within its class."""
        return rank % self.block // self.period

    def absent(self, rank):
        """Whether a rank does not run."""
        return 2 <= self.member(rank) < self.members - self.last

    def whole(self, ranks):
        """All members of the classes of these ranks."""
        first = {rank - self.member(rank) * self.period for rank in ranks}
        return {one + number * self.period for one in first for number in range(self.members)}

    def knows(self, ranks):
        """Whether the hub can tell from its running members whom a group holds."""
        return len({self.member(rank) for rank in ranks}) == 1 or self.whole(ranks) == set(ranks)


class Guard:
    """Refuses what cannot be folded. `folder`: where the run's first refusal is kept."""

    def __init__(self, fold, rank, folder):
        self.fold, self.rank, self.folder = fold, rank, folder
        self.done = False

    def refuse(self, what):
        """Ends this process, with one line for the whole run."""
        text = f"this job cannot be folded: {what}; in the job, first on rank {self.rank}; use --fold off"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            file = os.open(os.path.join(self.folder, "refused"), flags, 0o600)
        except OSError:
            pass  # another rank has said it
        else:
            os.write(file, text.encode())
            os.close(file)
            sys.stderr.write(f"phantora-ns: {text}\n")
            sys.stderr.flush()
        os._exit(70)

    def check_group(self, ranks):
        """Refuses a group of ranks that the hub would take for another."""
        if not self.fold.knows(ranks):
            named = ", ".join(map(str, ranks[:_FEW])) + (", ..." if len(ranks) > _FEW else "")
            self.refuse(
                f"a group of the ranks {named} holds neither whole classes nor ranks of one copy alone"
            )

    def watch(self, c10d):
        """Puts the checks into torch.distributed."""
        if self.done:
            return
        self.done = True
        self._watch_groups(c10d)
        for name in _OVER_SOCKETS:
            if hasattr(c10d.ProcessGroup, name):
                self._watch_tensors(c10d, name)
        for name in ("barrier", "monitored_barrier"):
            self._watch_barrier(c10d, name)

    def _watch_groups(self, c10d):
        make, split, meet = (
            c10d._new_process_group_helper,
            getattr(c10d, "split_group", None),
            c10d._store_based_barrier,
        )

        def helper(group_size, group_rank, global_ranks_in_group, *rest, **named):
            if global_ranks_in_group:
                self.check_group(list(global_ranks_in_group))
            elif group_size != self.fold.world:
                self.refuse(f"its default group has {group_size} of {self.fold.world} ranks")
            return make(group_size, group_rank, global_ranks_in_group, *rest, **named)

        def barrier(rank, store, group_name, rendezvous_count, *rest, **named):
            if rendezvous_count == self.fold.world:
                rendezvous_count = sum(not self.fold.absent(one) for one in range(self.fold.world))
            return meet(rank, store, group_name, rendezvous_count, *rest, **named)

        def split_group(parent_pg=None, split_ranks=None, *rest, **named):
            if parent_pg is None or c10d.get_world_size(parent_pg) == self.fold.world:
                for ranks in split_ranks or ():
                    self.check_group(list(ranks))
            return split(parent_pg, split_ranks, *rest, **named)

        c10d._new_process_group_helper = helper
        c10d._store_based_barrier = barrier
        if split is not None:
            c10d.split_group = split_group

    def _watch_tensors(self, c10d, name):
        real = getattr(c10d.ProcessGroup, name)

        def checked(group, *arguments, **named):
            kinds = _device_kinds(arguments) | _device_kinds(named.values())
            if not kinds <= _simulated_kinds(c10d, group):
                self._check_sockets(c10d, group, name)
            return real(group, *arguments, **named)

        setattr(c10d.ProcessGroup, name, checked)

    def _watch_barrier(self, c10d, name):
        real = getattr(c10d.ProcessGroup, name, None)
        if real is None:
            return

        def checked(group, *arguments, **named):
            if name != "barrier" or not _simulated_kinds(c10d, group):
                self._check_sockets(c10d, group, name)
            return real(group, *arguments, **named)

        setattr(c10d.ProcessGroup, name, checked)

    def _check_sockets(self, c10d, group, name):
        ranks = c10d.get_process_group_ranks(group)
        if any(map(self.fold.absent, ranks)):
            self.refuse(
                f"{name} goes over real sockets (gloo), where ranks that do not run take no part"
            )


def _device_kinds(values):
    """The kinds of devices of the tensors among these, or in lists of them."""
    kinds = set()
    for value in values:
        if isinstance(value, (list, tuple)):
            kinds |= _device_kinds(value)
        elif hasattr(value, "device"):
            kinds.add(value.device.type)
    return kinds


def _simulated_kinds(c10d, group):
    """The kinds of devices for which a group has a backend that the hub simulates."""
    backends = str(c10d._world.pg_backend_config.get(group, "cuda:nccl"))
    pairs = (one.partition(":") for one in backends.split(","))
    return {kind for kind, _, backend in pairs if backend in _SIMULATED}


class _Loader:
    """A module's own loader, and the checks once it is there."""

    def __init__(self, loader, then):
        self._loader, self._then = loader, then

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        """As the loader itself."""
        return self._loader.create_module(spec)

    def exec_module(self, module):
        """As the loader itself."""
        self._loader.exec_module(module)
        self._then()


class _Finder:
    """Finds the watched modules as those after it on the path do."""

    def __init__(self, guard):
        self._guard = guard

    def find_spec(self, name, path=None, target=None):
        """A spec whose loader adds the checks."""
        if name not in _WATCHED:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader, self._look)
                return spec
        return None

    def _look(self):
        c10d = sys.modules.get(_C10D)
        if c10d is not None and hasattr(c10d, "_new_process_group_helper"):
            self._guard.watch(c10d)


def install(environ):
    """Puts the checks into this process's torch.distributed, when it is imported."""
    folder = os.path.join(environ["PHANTORA_RUN_DIR"], "fold")
    guard = Guard(Fold(environ["PHANTORA_FOLD"]), environ["RANK"], folder)
    sys.meta_path.insert(0, _Finder(guard))
