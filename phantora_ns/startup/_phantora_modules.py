"""Says to which module of the model memory belongs (`--memory-modules`).

Why it exists: the allocator's blocks are known in libintercept/simulated/memory/holders.c, but only
Python knows the model. Three questions are answered here: in which module's forward a thread is, by
its stack; which blocks are parameters, buffers, gradients and optimizers' states, by walking over
the model and the optimizer; and, at the end of a step, what held the peak, as a file for the report.

Rules: nothing of the job is changed, no hook is set and no operator is called. It runs while the
job's clock stands. No garbage is collected meanwhile, and no reference to a tensor is kept."""

import ctypes
import gc
import json
import os
import sys
import weakref

OTHER, PARAMETERS, BUFFERS, GRADIENTS, STATES = range(5)
"""enum holder of protocol/enums.toml"""
SEVERAL = "several modules"
OUTSIDE = "the optimizer alone"
DEVICES = 16
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class _Held(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint64), ("kind", ctypes.c_uint32), ("name", ctypes.c_uint32)]


class Modules:
    """The models of this process, as they are met. `library`: the interceptor."""

    def __init__(self, library, folder):
        self._library = library
        self._folder = folder
        self._code = self._backward = self._optimizer = None
        self._known = {}  # id of a module -> (weak reference, number of its name)
        self._roots = []  # weak references
        self._peaks = []
        self.callbacks = ()
        library.phantora_memory_name.restype = ctypes.c_uint32
        library.phantora_memory_name.argtypes = (ctypes.c_char_p,)
        library.phantora_memory_name_of.restype = ctypes.c_char_p
        library.phantora_memory_name_of.argtypes = (ctypes.c_uint32,)
        library.phantora_memory_own.restype = None
        library.phantora_memory_own.argtypes = (
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_uint32,
        )
        library.phantora_memory_held.restype = ctypes.c_int64
        library.phantora_memory_held.argtypes = (
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.POINTER(_Held),
            ctypes.c_size_t,
        )

    def module(self):
        """The number of the name of the module whose forward the calling thread is in; 0: in none."""
        if self._code is None and not self._find_torch():
            return 0
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code is self._code:
                return self._number(frame)
            if code is self._backward:
                return 0
            frame = frame.f_back
        return 0

    def _find_torch(self):
        found = sys.modules.get("torch.nn.modules.module")
        call = getattr(getattr(found, "Module", None), "_wrapped_call_impl", None)
        graph = sys.modules.get("torch.autograd.graph")
        optimizer = sys.modules.get("torch.optim.optimizer")
        if call is None or graph is None or optimizer is None:
            return False
        self._backward = graph._engine_run_backward.__code__
        self._optimizer = optimizer
        self._code = call.__code__
        return True

    def _number(self, frame):
        module = frame.f_locals["self"]
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:
            outermost = module
            while frame is not None:
                if frame.f_code is self._code:
                    outermost = frame.f_locals["self"]
                frame = frame.f_back
            self._meet(outermost)
            known = self._known.get(id(module))
            if known is None or known[0]() is not module:  # no part of what called it
                self._meet(module)
                known = self._known[id(module)]
        return known[1]

    def _meet(self, root):
        """Gives names to a model and its parts, and owners to what they have by now."""
        label = type(root).__name__
        for name, module in root.named_modules():
            known = self._known.get(id(module))
            if known is None or known[0]() is not module:
                self._known[id(module)] = weakref.ref(module), self._name(name or label)
        self._roots = [one for one in self._roots if one() is not None]
        self._roots.append(weakref.ref(root))
        self._own([root], {})

    def _name(self, name):
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        return self._library.phantora_memory_name(name.removeprefix("module.").encode())

    def _common(self, first, second):
        """The name of the module of which both are parts."""
        paths = [self._text(number).split(".") for number in (first, second)]
        shared = os.path.commonprefix(paths)
        return self._name(".".join(shared) or SEVERAL)

    def _text(self, number):
        return self._library.phantora_memory_name_of(number).decode()

    def settle(self):
        """An optimizer has stepped."""
        if self._code is None and not self._find_torch():
            return
        states = {}
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self._optimizer.__file__:
                found = frame.f_locals.get("self")
                if isinstance(found, self._optimizer.Optimizer):
                    states = found.state
                    break
            frame = frame.f_back
        counted = self._count_all()
        peaks = [peak for _, peak in counted]
        if peaks != self._peaks:
            self._peaks = peaks
            self._own([one() for one in self._roots], states)
            self._write(counted)

    def _count_all(self):
        """For each device: the number of blocks that were held at its peak, and the peak in bytes."""
        return [self._count(device) for device in range(DEVICES)]

    def _count(self, device):
        peak = ctypes.c_uint64()
        count = self._library.phantora_memory_held(device, ctypes.byref(peak), None, 0)
        return count, peak.value

    def _own(self, roots, states):
        """Says whose the blocks are that models, and the optimizer with these states, hold now."""
        owners, names = {}, {}
        for root in filter(None, roots):
            for module in root.modules():
                known = self._known.get(id(module))
                if known is None:
                    continue
                for parameter in module._parameters.values():
                    if parameter is not None:
                        names[id(parameter)] = known[1]
                        self._add(owners, parameter, PARAMETERS, known[1])
                        self._add(owners, parameter.grad, GRADIENTS, known[1])
                for buffer in module._buffers.values():
                    self._add(owners, buffer, BUFFERS, known[1])
        alone = self._name(OUTSIDE)
        for parameter, kept in states.items():
            if id(parameter) not in names:
                self._add(owners, parameter, PARAMETERS, alone)
                self._add(owners, getattr(parameter, "grad", None), GRADIENTS, alone)
            for value in kept.values() if isinstance(kept, dict) else ():
                self._add(owners, value, STATES, names.get(id(parameter), alone))
        for (device, address), (kind, name) in owners.items():
            self._library.phantora_memory_own(device, address, kind, name)

    def _add(self, owners, value, kind, name):
        """Adds the blocks of a tensor. One that holds tensors of several modules is their parent's."""
        for tensor in _plain(value):
            where = tensor.device.index or 0, tensor.untyped_storage().data_ptr()
            before = owners.get(where)
            if before is not None and before[1] != name:
                owners[where] = before[0], self._common(before[1], name)
            elif before is None:
                owners[where] = kind, name

    def write(self):
        """Writes what held the peak of the device that had the highest one."""
        self._write(self._count_all())

    def _held(self, device, count):
        """The blocks and the bytes of a device's peak, which had `count` of them; None: not known."""
        peak = ctypes.c_uint64()
        while True:
            held = (_Held * max(0, count))()
            now = self._library.phantora_memory_held(device, ctypes.byref(peak), held, len(held))
            if now <= len(held):
                return held[: max(0, now)] if now >= 0 else None, peak.value
            count = now  # another thread had a new peak meanwhile

    def _write(self, counted):
        device = max(range(DEVICES), key=lambda one: (counted[one][1], -one))
        if not counted[device][1]:
            return
        held, peak = self._held(device, counted[device][0])
        rows = None
        if held is not None:
            sums = {}
            for block in held:
                key = block.kind, block.name
                sums[key] = sums.get(key, 0) + block.bytes
            rows = [[kind, self._text(name), size] for (kind, name), size in sums.items()]
        # of this process: ranks may be forks of one that was watched
        name = f"{os.environ.get('PHANTORA_NODE', '0')}-{os.getpid()}.json"
        path = os.path.join(self._folder, name)
        with open(path + ".new", "w") as file:
            json.dump({"device": device, "peak_bytes": peak, "held": rows}, file)
        os.replace(path + ".new", path)


def _plain(value):
    """The tensors on a GPU with memory of their own that a tensor, or a tensor of tensors, is."""
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        return
    local = getattr(value, "_local_tensor", None)
    if isinstance(local, torch.Tensor):
        yield from _plain(local)
    elif hasattr(type(value), "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            yield from _plain(getattr(value, name))
    elif value.device.type == "cuda" and value.layout is torch.strided:
        yield value


def install(library, environ):
    """Begins to watch this process."""
    import atexit

    modules = Modules(library, os.path.join(environ["PHANTORA_RUN_DIR"], "memory"))

    def guarded(function, otherwise):
        def call():
            collects = gc.isenabled()
            gc.disable()
            try:
                return function()
            except Exception as error:
                _complain(library, error)
                return otherwise
            finally:
                if collects:
                    gc.enable()

        return call

    ask = ctypes.CFUNCTYPE(ctypes.c_uint32)(guarded(modules.module, 0))
    settle = ctypes.CFUNCTYPE(None)(guarded(modules.settle, None))
    watch = library.phantora_memory_watch
    watch.restype, watch.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p)

    def end():
        watch(None, None)
        guarded(modules.write, None)()

    watch(ctypes.cast(ask, ctypes.c_void_p), ctypes.cast(settle, ctypes.c_void_p))
    atexit.register(end)
    modules.callbacks = ask, settle  # must live as long as they may be called


def _complain(library, error):
    """A failure here must not end the job."""
    sys.stderr.write(f"phantora-ns: --memory-modules: {error!r}; please report this\n")
