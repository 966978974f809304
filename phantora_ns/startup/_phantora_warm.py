"""Makes the image of a warmed Python, and turns a process that takes it over into the Python that was started.

Why it exists: libintercept/warm/ moves memory; what of that memory belonged to the process that made the
image is known here: environment, arguments, standard streams, signals, random seeds, what was cached
about the host. Modules that are not of the standard library stay hidden until the job imports them, so
that `sys.modules` is as after a start of one's own, and so that a variable which the script sets before it
imports torch is noticed: torch has read its variables already.

Rule: what cannot be made equal starts again as usual (`_start_again`), and the report counts it.
"""

import gc
import os
import sys
import time

_READ_AT_LOAD = tuple(
    (
        "ACC_ AS_SECURE BLAS CASK_ CUBLAS CUDA_LAUNCH_BLOCKING CUDA_PREFER DNNL_ GFORTRAN GLIBC GOMP_ GOTO_ "
        "INTEL_ I_MPI_ KINETO_ KMP_ LANG LC_ LD_ LIBNVVM LLVM_ MALLOC_ MKL MPI_ NPY_ NUMPY_ NVPL_ NVRTC "
        "NV_NVVM OMPI_ OMP_ ONEDNN_ OPENBLAS_ OPENSSL PYTHON PYTORCH_ TORCH TRITON_"
    ).split()
)
"""Libraries read variables that begin so while they are loaded. What Python modules read is recorded."""

_READ_LATER = ("TORCH_NCCL_", "TORCHELASTIC_")

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


class _Hidden:
    """An importer of the modules that the image holds. It comes first on `sys.meta_path`."""

    def __init__(self):
        # (package of the import that loaded them, {name: module}, {variable: what the import set})
        self._groups = []
        self.environment = {}
        self.read = set()

    def add(self, root, modules, variables):
        self._groups.append((root.partition(".")[0], modules, variables))

    def hide(self):
        for _, modules, _ in self._groups:
            for name in modules:
                sys.modules.pop(name, None)

    def find_spec(self, name, _path=None, _target=None):
        for _, modules, _ in self._groups:
            if name in modules:
                return self._spec(name, modules[name])
        return None

    def _spec(self, name, module):
        from importlib.machinery import ModuleSpec

        own = getattr(module, "__spec__", None)
        spec = ModuleSpec(name, self, origin=getattr(own, "origin", None))
        spec.submodule_search_locations = getattr(own, "submodule_search_locations", None)
        spec.has_location = getattr(own, "has_location", False)
        return spec

    def create_module(self, _spec):
        return None

    def exec_module(self, module):
        """The import system takes from `sys.modules` what stands there afterwards."""
        if self.environment:
            before, self.environment = self.environment, {}
            _follow(_changed(before, self.read))
        self.reveal(module.__name__)

    def reveal(self, name):
        top = name.partition(".")[0]
        for root, modules, variables in self._groups:
            if name not in modules:
                continue
            shown = [one for one in modules if root == top or one.partition(".")[0] == top]
            for one in shown:
                sys.modules[one] = modules.pop(one)
            if root == top:
                os.environ.update(variables)
            return


def _changed(before, read):
    """The variables that differ from those at the start, as far as the image's modules have read them."""
    now = dict(os.environ)
    names = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
    return sorted(
        name
        for name in names
        if name in read
        or (name.startswith(_READ_AT_LOAD) and not name.startswith(_READ_LATER))
    )


def _follow(names):
    """Lets torch know of variables that the script has set, or starts again without an image."""
    for name in names:
        if name not in _ALLOCATOR or name not in os.environ:
            _start_again(f"the script sets {name} before it imports torch")
    # TODO allocator settings
    for name in names:
        _start_again(f"the script sets {name} before it imports torch")


def _start_again(why):
    """Starts this process again, without an image."""
    environ = dict(_arrived_environment, PHANTORA_WARM_NOT=why)
    os.execve(f"/proc/self/exe", sys.orig_argv, environ)


_arrived_environment = {}


def _import_all(names, hidden):
    """Imports `names`; says by standard error which cannot be imported."""
    import importlib

    read = os.environ.__class__.__getitem__

    def recording(environ, name):
        hidden.read.add(name)
        return read(environ, name)

    os.environ.__class__.__getitem__ = recording
    try:
        for name in names:
            before, variables = set(sys.modules), dict(os.environ)
            try:
                importlib.import_module(name)
            except ImportError:
                if name == names[0]:
                    raise
            hidden.add(
                name,
                {n: m for n, m in sys.modules.items() if n not in before and not _standard(n)},
                dict(os.environ.items() - variables.items()),
            )
    finally:
        os.environ.__class__.__getitem__ = read
    hidden.hide()


def _standard(name):
    return name.partition(".")[0] in sys.stdlib_module_names


def make(library):
    """Called in the Python that makes the image. Returns only in processes that take it over."""
    import ctypes

    gc.disable()
    hidden = _Hidden()
    _import_all(os.environ["PHANTORA_WARM"].split(","), hidden)
    sys.meta_path.insert(0, hidden)
    for stream in sys.stdout, sys.stderr:
        stream.flush()
    words = [os.fsencode(word) for word in sys.orig_argv]
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    started_as = os.environ.copy()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(0 if status == 0 else 70)
    _require_quiet(library)
    gc.freeze()
    before_fork, after_fork = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Child
    take = library.phantora_take_image
    before_fork()
    result = take(len(words), argv)
    if result != 1:
        os._exit(0 if result == 0 else 70)
    after_fork()
    _become(library, hidden)


def _require_quiet(library):
    """Ends the process if an import has left what no image can hold."""
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
    if library.phantora_elapsed_ns():
        print("an import uses CUDA", file=sys.stderr)
        os._exit(70)


def _become(library, hidden):
    """In a process that has taken the image over: everything that a start of its own would have set."""
    _set_environment()
    hidden.environment = dict(os.environ)
    _arrived_environment.update(os.environ)
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
        logging._startTime = (
            time.time_ns() if isinstance(logging._startTime, int) else time.time()
        )
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))
