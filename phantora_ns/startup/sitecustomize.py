"""Why it exists: simulated time must reach the job's own log lines, and the allocator's peaks must reach the report.

Python imports this file at start-up because its folder is first on PYTHONPATH in the job's processes. It replaces
`time.time`, `time.perf_counter` and their `_ns` forms, and nothing else: timed waits, `monotonic`, `sleep` and all C and
C++ clocks stay real, because a wait whose deadline is on one clock and whose waiting is on another hangs or overshoots.
Until this process has touched CUDA the replaced clocks are real too, so agents and stores never see simulated time.
Then it hands over to the `sitecustomize` that the user has, if any. It imports nothing that costs start-up time.
"""
import sys
import time

_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1  # linux/time.h; Python's perf_counter is CLOCK_MONOTONIC


class SimulatedClocks:
    """The four clocks: real until the process touches CUDA, from then on real-at-that-moment plus simulated time elapsed.

    Bound methods stand in for the built-in functions because, like those and unlike plain functions, they do not turn into
    methods when a class holds them as an attribute. Their names equal those in `time`, so they pickle by reference.
    """

    def __init__(self, elapsed_ns, touch_clock):
        """`elapsed_ns()`: 0, or 1 + ns of simulated time since the touch; `touch_clock(id)`: that clock at the touch, ns."""
        self._elapsed_ns = elapsed_ns
        self._touch_clock = touch_clock
        self._real = (time.time, time.time_ns, time.perf_counter, time.perf_counter_ns)
        self._realtime_base = self._monotonic_base = None

    def __reduce__(self):
        return __import__, ("time",)

    def install(self):
        """Puts the four methods in the place of the functions in module `time`."""
        time.time, time.time_ns = self.time, self.time_ns
        time.perf_counter, time.perf_counter_ns = self.perf_counter, self.perf_counter_ns

    def time(self):
        """Seconds since the epoch."""
        return self.time_ns() / 1e9 if self._elapsed_ns() else self._real[0]()

    def time_ns(self):
        """Nanoseconds since the epoch."""
        elapsed = self._elapsed_ns()
        if not elapsed:
            return self._real[1]()
        if self._realtime_base is None:
            self._realtime_base = self._touch_clock(_CLOCK_REALTIME) - 1
        return self._realtime_base + elapsed

    def perf_counter(self):
        """Seconds of a clock that never goes back."""
        return self.perf_counter_ns() / 1e9 if self._elapsed_ns() else self._real[2]()

    def perf_counter_ns(self):
        """Nanoseconds of a clock that never goes back."""
        elapsed = self._elapsed_ns()
        if not elapsed:
            return self._real[3]()
        if self._monotonic_base is None:
            self._monotonic_base = self._touch_clock(_CLOCK_MONOTONIC) - 1
        return self._monotonic_base + elapsed


def _report_peaks(report):
    """Tells the report the caching allocator's peaks, bytes: the largest of this process's devices, since the last reset."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():  # False as well in a forked child, where CUDA cannot be asked
        return
    devices = range(cuda.device_count())
    report(max(map(cuda.max_memory_allocated, devices)), max(map(cuda.max_memory_reserved, devices)))


def _start():
    import atexit
    import ctypes

    library = ctypes.PyDLL(None)  # the preloaded interceptor is in the global scope; PyDLL: a call need not drop the GIL
    try:
        elapsed_ns, touch_clock = library.phantora_elapsed_ns, library.phantora_touch_clock
        report = library.phantora_report_peaks
    except AttributeError:  # a process that cleared LD_PRELOAD runs on the real clock
        return
    elapsed_ns.restype, elapsed_ns.argtypes = ctypes.c_uint64, ()
    touch_clock.restype, touch_clock.argtypes = ctypes.c_int64, (ctypes.c_int,)
    report.restype, report.argtypes = None, (ctypes.c_uint64, ctypes.c_uint64)
    SimulatedClocks(elapsed_ns, touch_clock).install()
    atexit.register(_report_peaks, report)


def _chain(own_folder):
    """Runs the next `sitecustomize` on the path in our stead, as Python would have done without us."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != own_folder])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _main():
    import os

    if "PHANTORA_RUN_DIR" in os.environ:
        _start()
    _chain(os.path.dirname(os.path.abspath(__file__)))


_main()
