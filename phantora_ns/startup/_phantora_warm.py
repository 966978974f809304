"""Makes the image of a warmed Python, and turns a process that takes it over into the Python that was started.

Why it exists: libintercept/warm/ moves memory; what of that memory belonged to the process that made the
image is known here: environment, arguments, standard streams, signals, random seeds, what was cached
about the host. Modules that are not of the standard library stay hidden until the job imports them, so
that `sys.modules` is as after a start of one's own, and so that a variable which the script sets before it
imports torch is noticed: torch has read its variables already.

Rule: what cannot be made equal starts again as usual (`_start_again`), and the report counts it.
"""

import atexit
import gc
import os
import sys
import time
import warnings

_READ_AT_LOAD = tuple(
    (
        "ACC_ AS_SECURE BLAS CASK_ CUBLAS CUDA_LAUNCH_BLOCKING CUDA_PREFER DNNL_ GFORTRAN GLIBC GOMP_ GOTO_ "
        "INTEL_ I_MPI_ KINETO_ KMP_ LANG LC_ LD_ LIBNVVM LLVM_ MALLOC_ MKL MPI_ NPY_ NUMPY_ NVPL_ NVRTC "
        "NV_NVVM OMPI_ OMP_ ONEDNN_ OPENBLAS_ OPENSSL PYTHON PYTORCH_ TORCH TRITON_"
    ).split()
)
"""Libraries read variables that begin so while they are loaded. What Python modules read is recorded."""

_READ_LATER = ("TORCH_NCCL_", "TORCHELASTIC_")

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch takes these later too, by a function."""


class _Group:
    """What one import loaded and did: `modules` by name, `variables` that it set, names of those that it
    `read`, `filters` of warnings that it added."""

    def __init__(self, root, modules, variables, read, filters):
        self.package = root.partition(".")[0]
        self.modules, self.variables, self.read = modules, variables, read
        self.filters = filters


class _Hidden:
    """An importer of the modules that the image holds. It comes first on `sys.meta_path`.

    An import of a group's package shows the group as a whole, as the import that loaded it did; an
    import of another package in it (numpy, which torch imports) shows that package alone.
    """

    def __init__(self):
        self.groups = []
        self.elapsed_ns = None
        self._at_start = {}
        self._followed = set()

    def hide(self):
        for group in self.groups:
            for name in group.modules:
                sys.modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def arrive(self, elapsed_ns):
        """Called once the image has replaced this process's memory, before any code of the job."""
        self._at_start = dict(os.environ)
        self.elapsed_ns = elapsed_ns

    def find_spec(self, name, _path=None, _target=None):
        group = self._group(name)
        if group is None:
            return None
        from importlib.machinery import ModuleSpec

        own = getattr(group.modules[name], "__spec__", None)
        spec = ModuleSpec(name, self, origin=getattr(own, "origin", None))
        spec.submodule_search_locations = getattr(own, "submodule_search_locations", None)
        spec.has_location = getattr(own, "has_location", False)
        return spec

    def create_module(self, _spec):
        return None

    def exec_module(self, module):
        """The import system takes from `sys.modules` what stands there afterwards."""
        name = module.__name__
        package = name.partition(".")[0]
        group = self._group(name)
        changed = self._changed(group)
        shown = [
            one
            for one in group.modules
            if group.package == package or one.partition(".")[0] == package
        ]
        later = [one for one in changed if package == "torch" and one in _ALLOCATOR]
        if len(later) < len(changed):
            self._start_again(next(one for one in changed if one not in later))
        for one in shown:
            sys.modules[one] = group.modules.pop(one)
        if group.package == package:
            os.environ.update(group.variables)
            warnings.filters[0:0] = group.filters
            group.filters = []
        for one in later:
            _set_allocator(sys.modules[name], os.environ.get(one, ""))

    def module(self, name):
        """A module of the image; None: it holds none of that name."""
        group = self._group(name)
        return group and group.modules[name]

    def _group(self, name):
        return next((group for group in self.groups if name in group.modules), None)

    def _changed(self, group):
        """The variables that the job has set since its start, and that the group's import has read."""
        now, before = os.environ, self._at_start
        names = {one for one in now.keys() | before.keys() if now.get(one) != before.get(one)}
        libraries = "torch" in group.modules  # it loads them
        changed = {
            one
            for one in names - self._followed
            if one in group.read
            or (libraries and one.startswith(_READ_AT_LOAD) and not one.startswith(_READ_LATER))
        }
        self._followed |= changed
        return sorted(changed)

    def _start_again(self, variable):
        """Starts this process again, without an image."""
        why = f"the script sets {variable} before an import that reads it"
        if self.elapsed_ns():
            sys.stderr.write(
                f"phantora-ns: warning: {why}, after it has used CUDA; a module that the warm start had "
                "imported does not see the new value; use --warm-start off\n"
            )
            return
        program = os.readlink("/proc/self/exe")
        named = sys.orig_argv[0]
        if "/" in named and os.path.exists(named) and os.path.samefile(named, program):
            program = named
        for stream in sys.stdout, sys.stderr:
            if stream is not None:
                stream.flush()
        os.execve(program, sys.orig_argv, self._at_start | {"PHANTORA_WARM_NOT": why})


def _set_allocator(torch, settings):
    """What the allocator reads from its variable while torch is loaded."""
    for name in (
        "_accelerator_setAllocatorSettings",
        "_cuda_cudaCachingAllocator_set_allocator_settings",
    ):
        if hasattr(torch._C, name):
            getattr(torch._C, name)(settings)
            return
    raise RuntimeError("this torch takes no settings of its allocator; use --warm-start off")


def _import_all(names, hidden):
    """Imports `names`. The first must be there; of the others a release of torch may lack some."""
    import importlib

    environ_class = os.environ.__class__
    read_variable = environ_class.__getitem__
    read = set()

    def recording(environ, name):
        read.add(name)
        return read_variable(environ, name)

    environ_class.__getitem__ = recording
    try:
        for name in names:
            modules, variables = set(sys.modules), dict(os.environ)
            filters = list(warnings.filters)
            read.clear()
            try:
                importlib.import_module(name)
            except ImportError:
                if name == names[0]:
                    raise
            reads = frozenset(read)
            fresh = {
                one: module
                for one, module in sys.modules.items()
                if one not in modules and one.partition(".")[0] not in sys.stdlib_module_names
            }
            changed = dict(os.environ.items() - variables.items())
            added = [one for one in warnings.filters if not any(one is other for other in filters)]
            warnings.filters[:] = filters
            hidden.groups.append(_Group(name, fresh, changed, reads, added))
    finally:
        environ_class.__getitem__ = read_variable
    hidden.hide()


def make(library, end_in_turn):
    """Called in the Python that makes the image. Returns only in processes that take it over. These call
    `end_in_turn` when they exit."""
    import ctypes

    gc.disable()
    hidden = _Hidden()
    # before the imports: of the functions that Py_AtExit registers, the last runs first
    ctypes.pythonapi.Py_AtExit(library.phantora_speak)
    names = os.environ["PHANTORA_WARM"].split(",")
    _import_all(names[:1] if "PHANTORA_WARM_FIRST" in os.environ else names, hidden)
    for stream in sys.stdout, sys.stderr:
        stream.flush()
    words = [os.fsencode(word) for word in sys.orig_argv]
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(0 if status == 0 else 70)
    _require_quiet(library, hidden.groups[0].modules.get("torch._C"))
    if any(type(one).__module__ == "nanobind" for one in gc.get_objects()):
        ctypes.pythonapi.Py_AtExit(library.phantora_hush)
    # after the imports: what they do at exit writes to the image, and runs later than this
    atexit.register(end_in_turn, library.phantora_wait_to_end)
    gc.freeze()
    before_fork, after_fork = (
        ctypes.pythonapi.PyOS_BeforeFork,
        ctypes.pythonapi.PyOS_AfterFork_Child,
    )
    take = library.phantora_take_image
    before_fork()
    result = take(len(words), argv)
    if result != 1:
        os._exit(0 if result == 0 else 70)
    after_fork()
    _become(library, hidden)


def _require_quiet(library, torch):
    """Ends the process if an import has left what no image can hold. `torch`: torch._C."""
    descriptors = []
    for number in os.listdir("/proc/self/fd"):
        try:
            descriptors.append((int(number), os.readlink(f"/proc/self/fd/{number}")))
        except OSError:
            continue  # the folder's own
    left = [target for number, target in descriptors if number > 2]
    if left:
        print("an import leaves open", *left, file=sys.stderr)
        os._exit(70)
    if len(os.listdir("/proc/self/task")) != 1:
        print("an import leaves a thread that a fork keeps", file=sys.stderr)
        os._exit(70)
    # a fork of a process that has so much as counted its GPUs cannot use CUDA
    if library.phantora_elapsed_ns() or (torch and torch._cuda_isInBadFork()):
        print("an import uses CUDA", file=sys.stderr)
        os._exit(70)


def _become(library, hidden):
    """In a process that has taken the image over: everything that a start of its own would have set."""
    _set_environment()
    hidden.arrive(library.phantora_elapsed_ns)
    _seed(hidden)
    _set_arguments(library.phantora_main_argument())
    _set_streams()
    _set_signals()
    _forget_host()
    gc.enable()
    if "PHANTORA_WARM_TRY" in os.environ:
        os._exit(0)
    library.phantora_count_start(b"warm")


def _set_environment():
    import posix

    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")[:-1]
    posix.environ.clear()
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if equals:
            posix.environ.setdefault(name, value)
    if os.environ._data is not posix.environ:
        os.environ._data.clear()
        os.environ._data.update(posix.environ)


def _set_arguments(main):
    with open("/proc/self/cmdline", "rb") as file:
        words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    rest = words[main + (2 if words[main] in ("-m", "-c") else 1) :]
    sys.orig_argv[:] = words
    sys.argv[:] = [words[main], *rest]


def _set_streams():
    """As create_stdio() in CPython's Python/pylifecycle.c makes them. The objects stay the same, since
    modules hold them."""
    import _io

    unbuffered = "-u" in sys.orig_argv[1 : _options_end()] or os.environ.get("PYTHONUNBUFFERED")
    for number, name, mode in (0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"):
        try:
            os.fstat(number)
        except OSError:
            setattr(sys, name, None)
            setattr(sys, f"__{name}__", None)
            continue
        stream = getattr(sys, name)
        encoding, errors = stream.encoding, stream.errors
        raw_only = bool(unbuffered) and mode == "w"
        buffer = _io.open(number, mode + "b", 0 if raw_only else -1, None, None, None, False)
        raw = buffer if raw_only else buffer.raw
        raw.name = f"<{name}>"
        lines = not unbuffered and (raw.isatty() or number == 2)
        stream.__init__(buffer, encoding, errors, "\n", lines, bool(unbuffered))
        stream.mode = mode


def _options_end():
    for at, word in enumerate(sys.orig_argv[1:], 1):
        if not word.startswith("-") or word in ("-m", "-c"):
            return at
    return len(sys.orig_argv)


def _set_signals():
    """A signal that the process was started to ignore stays ignored, and Python must know."""
    import signal

    with open("/proc/self/status") as file:
        ignored = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn"))
    for number in range(1, 65):
        if ignored >> (number - 1) & 1 and signal.getsignal(number) is not signal.SIG_IGN:
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                continue  # 32 and 33 are glibc's


def _seed(hidden):
    """Generators that are seeded at random while their module is imported. Python's own has been."""
    torch, numpy = hidden.module("torch"), hidden.module("numpy.random")
    if torch is not None:
        torch.default_generator.seed()
    if numpy is not None:
        numpy.seed()


def _forget_host():
    """What modules know of the host and of the moment at which they were imported."""
    import importlib

    importlib.invalidate_caches()
    platform = sys.modules.get("platform")
    if platform is not None:
        platform._uname_cache = None
        platform._platform_cache.clear()
    logging = sys.modules.get("logging")
    if logging is not None:
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
    threading = sys.modules.get("threading")
    if threading is not None and hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))
