"""The start-up hook of the job's Python processes.

Why it exists: the job's own log lines must show simulated time, the report needs the peaks of the
caching allocator, and the leader has to start again with another library. Python imports this file
at start-up because its folder is first on PYTHONPATH. Afterwards it runs the `sitecustomize` that
the user has, if any.

It replaces `time.time`, `time.perf_counter`, their `_ns` forms and `time.sleep`, and nothing else.
Timed waits, `monotonic` and all C and C++ clocks stay real, because a wait hangs or overshoots when
its deadline and its waiting are on different clocks. `sleep` passes on both clocks. All of them are
real until the process has touched CUDA, so agents and stores never see simulated time. Rule: nothing
is imported that costs start-up time.
"""

import sys
import time

_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1  # linux/time.h; Python's perf_counter is CLOCK_MONOTONIC


_ENDING_AT_ONCE, _END_WAIT_S = (
    4,
    10.0,
)  # an end may depend on another rank's, so none waits for ever

# Modules that wait for another real process, whose pace is no part of the job: their sleeps and clocks
# are real.
_REAL_WAITS = ("subprocess.", "multiprocessing.", "torch.utils.file_baton.", "filelock.")


def _waits_for_another(frame):
    """Whether a function of such a module runs in this frame."""
    return f"{frame.f_globals.get('__name__', '')}.".startswith(_REAL_WAITS)


class SimulatedClocks:
    """The four clocks and `sleep`. They are real until the process touches CUDA. From then on they show simulated
    time: the monotonic one from the touch on, the other from a moment that is the same in all ranks.

    Bound methods stand in for the built-in functions because, like those and unlike plain
    functions, they do not turn into methods when a class holds them as an attribute. Their names
    equal those in `time`, so they pickle by reference.
    """

    def __init__(self, elapsed_ns, touch_clock, pass_ns):
        """`elapsed_ns()`: 0, or 1 + ns of simulated time since the touch; `touch_clock(id)`: what that
        clock shows at the touch, ns; `pass_ns(ns)`: so much simulated time passes for this thread."""
        self._elapsed_ns = elapsed_ns
        self._touch_clock = touch_clock
        self._pass_ns = pass_ns
        self._real_sleep = time.sleep
        self._real = (time.time, time.time_ns, time.perf_counter, time.perf_counter_ns)
        self._realtime_base = self._monotonic_base = None

    def __reduce__(self):
        return __import__, ("time",)

    def install(self):
        """Puts the methods in the place of the functions in module `time`."""
        time.time, time.time_ns = self.time, self.time_ns
        time.perf_counter, time.perf_counter_ns = self.perf_counter, self.perf_counter_ns
        time.sleep = self.sleep

    def time(self):
        """Seconds since the epoch."""
        if _waits_for_another(sys._getframe(1)) or not self._elapsed_ns():
            return self._real[0]()
        return self.time_ns() / 1e9

    def time_ns(self):
        """Nanoseconds since the epoch."""
        elapsed = 0 if _waits_for_another(sys._getframe(1)) else self._elapsed_ns()
        if not elapsed:
            return self._real[1]()
        if self._realtime_base is None:
            self._realtime_base = self._touch_clock(_CLOCK_REALTIME) - 1
        return self._realtime_base + elapsed

    def perf_counter(self):
        """Seconds of a clock that never goes back."""
        if _waits_for_another(sys._getframe(1)) or not self._elapsed_ns():
            return self._real[2]()
        return self.perf_counter_ns() / 1e9

    def perf_counter_ns(self):
        """Nanoseconds of a clock that never goes back."""
        elapsed = 0 if _waits_for_another(sys._getframe(1)) else self._elapsed_ns()
        if not elapsed:
            return self._real[3]()
        if self._monotonic_base is None:
            self._monotonic_base = self._touch_clock(_CLOCK_MONOTONIC) - 1
        return self._monotonic_base + elapsed

    def sleep(self, seconds, /):
        """Sleeps for real, so that a loop that waits for something real goes round as often as it
        should. The simulated clock moves first: other ranks need not wait for the real one."""
        if 0 < seconds < 1e9 and not _waits_for_another(sys._getframe(1)) and self._elapsed_ns():
            self._pass_ns(round(seconds * 1e9))
        self._real_sleep(seconds)


def _used_cuda():
    """torch.cuda; None in a process that has not used it. In a forked child, where CUDA cannot be
    asked, it is not initialized either."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _report_peaks(report):
    """Gives the report the peaks of the caching allocator in bytes, since the last reset: the largest
    of this process's devices."""
    cuda = _used_cuda()
    if cuda is None:
        return
    devices = range(cuda.device_count())
    report(
        max(map(cuda.max_memory_allocated, devices)), max(map(cuda.max_memory_reserved, devices))
    )


def _keep_error(environ):
    """Keeps for the launcher's last line what ended this rank, if it is the first to end so: below its own message come
    the tracebacks of every launcher. An error of a rank's helper may be no failure of the job."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return
    import os

    rank = environ["RANK"]
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            parents = file.read().split(b"\0")
    except OSError:
        parents = []  # a node's init, of which an ordinary user may not read it, and no rank
    if f"RANK={rank}".encode() in parents:
        return
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(os.path.join(environ["PHANTORA_RUN_DIR"], "error"), flags, 0o600)
    except (OSError, KeyError):
        return
    try:
        said = str(error).strip().partition("\n")[0]
    except Exception:
        said = ""
    text = f"rank {rank}: {type(error).__name__}" + (f": {said}" if said else "")
    try:
        os.write(file, text.encode(errors="replace"))
    except OSError:  # a full disk; the rank's own message is on the screen in any case
        pass
    os.close(file)


def _let_autograd_end(sleep):
    """Gives PyTorch's autograd threads a moment before the interpreter ends. From torch 2.12 on such a
    thread may still have to let go of its last task, for which it needs the interpreter. Without it
    the thread ends the process: "terminate called without an active exception"."""
    if sys.version_info < (3, 14) and _used_cuda() is not None:
        sleep(0.05)


def _end_in_turn(tell_wait, sleep=time.sleep):
    """Waits for one of a few places among the processes of the run that end now. An interpreter that
    ends writes to all that it frees. If all ranks did so at once, none would share its image's memory
    with another any more. The kernel frees the place. Nobody waits on while no place changes hands:
    who ends may be waiting for who waits. `tell_wait()` tells the hub that this process waits, so that it
    answers those that end without waiting for this one."""
    import fcntl
    import os

    folder = os.path.join(os.environ["PHANTORA_RUN_DIR"], "warm")
    try:
        places = [
            os.open(os.path.join(folder, f"end-{n}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for n in range(_ENDING_AT_ONCE)
        ]
    except OSError:
        return
    waited_s, seen, pause_s = 0.0, None, 0.02
    while waited_s < _END_WAIT_S:
        for place in places:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            os.pwrite(place, os.urandom(16), 0)
            return
        if seen is None:
            tell_wait()
        holders = [os.pread(place, 16, 0) for place in places]
        if holders != seen:
            seen, waited_s = holders, 0.0
        sleep(pause_s)
        waited_s += pause_s
        pause_s = min(pause_s * 1.2, 0.2)


def _start(environ):
    import atexit
    import ctypes

    try:
        # the preloaded interceptor is in the global scope; PyDLL: a call need not drop the GIL
        library = ctypes.PyDLL(None)
        elapsed_ns, touch_clock = library.phantora_elapsed_ns, library.phantora_touch_clock
        report, pass_ns = library.phantora_report_peaks, library.phantora_pass_ns
    except (AttributeError, OSError):
        _refuse_alone(environ)
        return
    elapsed_ns.restype, elapsed_ns.argtypes = ctypes.c_uint64, ()
    touch_clock.restype, touch_clock.argtypes = ctypes.c_int64, (ctypes.c_int,)
    report.restype, report.argtypes = None, (ctypes.c_uint64, ctypes.c_uint64)
    pass_ns.restype, pass_ns.argtypes = None, (ctypes.c_uint64,)
    atexit.register(_let_autograd_end, time.sleep)
    SimulatedClocks(elapsed_ns, touch_clock, pass_ns).install()
    atexit.register(_report_peaks, report)
    if "PHANTORA_WARM_TAKE" in environ:
        _warm(library)
        _lead(environ)
    if environ.get("PHANTORA_MEMORY_MODULES") == "1":
        _watch_memory(library, environ)
    environ.pop("PHANTORA_WARM_NOT", None)
    if "RANK" in environ:
        environ["PHANTORA_INTERPOSED"] = "1"
        atexit.register(_keep_error, environ)
        if "PHANTORA_FOLD" in environ:
            _guard_folding(environ)


def _warm(library):
    """Makes the image of a warmed Python (libintercept/warm/). Returns only in a process that has
    taken it over, which goes on as if it had been started here."""
    import _phantora_warm

    del sys.modules[_phantora_warm.__name__]
    _phantora_warm.make(library, _end_in_turn)


def _watch_memory(library, environ):
    """Finds out which modules hold memory (docs/page.md). A leader's memory is its GPU's."""
    import _phantora_modules

    if hasattr(library, "phantora_memory_watch"):
        _phantora_modules.install(library, environ)


def _guard_folding(environ):
    """Watches for what a folded job must not do (docs/folding.md)."""
    import _phantora_fold

    del sys.modules[_phantora_fold.__name__]
    _phantora_fold.install(environ)


def _refuse_alone(environ):
    """Ends a process that should have the interceptor in it and has not: it would use this
    machine's own GPUs and clocks, as if nothing were wrong. A helper that runs without LD_PRELOAD
    on purpose goes on: it is no rank, or a rank that has the interceptor started it."""
    named = environ["PHANTORA_RUN_DIR"] + "/lib/" in environ.get("LD_PRELOAD", "")
    helper = "RANK" not in environ or "PHANTORA_INTERPOSED" in environ
    if not named and helper:
        return
    import os

    who = f"rank {environ['RANK']}" if "RANK" in environ else "a process of the job"
    why = "although LD_PRELOAD names it" if named else "since LD_PRELOAD no longer names it"
    cure = "run phantora-ns doctor" if named else "hand LD_PRELOAD on to the ranks"
    sys.stderr.write(
        f"phantora-ns: {who} is not simulated: the interceptor is not loaded, {why}; "
        f"at the start of {sys.executable}; {cure}\n"
    )
    sys.stderr.flush()
    os._exit(70)


def _lead(environ):
    """Starts this process again as the leader (docs/leading.md) if PHANTORA_LEADER names its rank;
    else returns.

    It takes an exec, because libraries are preloaded only then. Children of a leader
    inherit PHANTORA_LEAD_PID and never lead; of two processes with the leader's rank the one with
    the lock does, which tells the hub that it lives.
    """
    rank = environ.get("PHANTORA_LEADER")
    if rank is None or environ.get("RANK") != rank or "PHANTORA_LEAD_PID" in environ:
        return
    import fcntl
    import json
    import os

    library, run_dir = environ["PHANTORA_LEAD_LIBRARY"], environ["PHANTORA_RUN_DIR"]
    try:
        lock = os.open(os.path.join(run_dir, "leader.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except BlockingIOError:
            os.close(lock)
            return
        # a lock of this kind outlives an exec, and no child inherits it
        os.set_inheritable(lock, True)
        env = dict(environ)
        env["LD_PRELOAD"] = ":".join(
            [
                library,
                *_without(
                    os.path.join(os.path.dirname(library), "libphantora.so"),
                    env.get("LD_PRELOAD", "").replace(" ", ":"),
                ),
            ]
        )
        env["LD_LIBRARY_PATH"] = ":".join(
            _without(os.path.join(run_dir, "lib"), env.get("LD_LIBRARY_PATH", ""))
        )
        own = {
            "PHANTORA_LEAD_" + name[len("PHANTORA_") :]: value
            for name, value in env.items()
            if name.startswith("PHANTORA_") and not name.startswith("PHANTORA_LEAD")
        }
        for name, value in json.loads(env["PHANTORA_LEAD_RESTORE"]).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        if not env["LD_LIBRARY_PATH"]:
            del env["LD_LIBRARY_PATH"]
        children = {name: environ.get(name) for name in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
        env |= own | {
            "PHANTORA_LEAD_PID": str(os.getpid()),
            "PHANTORA_LEAD_LOCK": str(lock),
            "PHANTORA_LEAD_CHILDREN": json.dumps(children),
        }
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(
            f"phantora-ns: rank {rank} cannot become the leader: {error!r}; at the start of its Python; use "
            "--leaders none, and please report this\n"
        )
        sys.stderr.flush()
        os._exit(70)


def _without(entry, path):
    """The entries of a colon-separated path without the first one that equals `entry`. A second one
    is the user's own."""
    entries = [part for part in path.split(":") if part]
    if entry in entries:
        entries.remove(entry)
    return entries


def _after_leading(environ):
    """In a new leader: restores the environment, so that its children are simulated processes, and
    keeps the descriptor of its lock from them."""
    import json
    import os

    if environ.get("PHANTORA_LEAD_PID") != str(os.getpid()):
        return
    for name, value in json.loads(environ["PHANTORA_LEAD_CHILDREN"]).items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    os.set_inheritable(int(environ["PHANTORA_LEAD_LOCK"]), False)


def _chained(own_folder):
    """A function that runs the next `sitecustomize` on the path, which Python would have run without ours. Only
    folders after our own are searched: if one run starts another, the path has a hook of each, and a hook that also
    searched before itself would find the other one again, without end."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    begin = sys.path.index(own_folder) + 1 if own_folder in sys.path else 0
    spec = PathFinder.find_spec(
        "sitecustomize", [entry for entry in sys.path[begin:] if entry != own_folder]
    )

    def run():
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)

    return run if spec is not None and spec.loader is not None else lambda: None


def _main():
    import _signal
    import os

    # Else a SIGINT meanwhile, which raises KeyboardInterrupt, is a fatal error of Python's start
    # with exit code 1.
    python_handles = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if python_handles:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    if "PHANTORA_RUN_DIR" in os.environ:
        _lead(os.environ)
        if "PHANTORA_LEAD_PID" in os.environ:
            _after_leading(os.environ)
        _start(os.environ)
    run_next = _chained(os.path.dirname(os.path.abspath(__file__)))
    # A process that has taken over an image may be one that ignores SIGINT.
    if python_handles and _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    run_next()


_main()
