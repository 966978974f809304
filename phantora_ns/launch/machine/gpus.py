"""The real GPUs of this machine, as NVML describes them, and a lock on each.

Why it exists: a rank can lead only on a real GPU of the simulated model, two leaders on one GPU
would disturb each other's measurements, and a recording must say where it was made. CUDA is not
used here, because a context costs half a gigabyte. Functions and constants are facts of nvml.h
(driver 580).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass

from phantora_ns.launch.errors import LaunchError

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, the longest of those used here
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_LOCK_FOLDER = "/tmp"  # not TMPDIR: every run on this machine must look in the same place


@dataclass(frozen=True)
class RealGpu:
    """One GPU of this machine. `clocks`: its highest clocks, as text; empty if the driver does not
    tell them."""

    index: int
    uuid: str
    name: str
    clocks: str


@dataclass(frozen=True)
class Machine:
    """This machine's GPUs, and versions of its driver and of the CUDA that the driver brings."""

    gpus: tuple[RealGpu, ...] = ()
    driver: str = ""
    cuda: str = ""


def _text(call, *arguments) -> str:
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    return (
        buffer.value.decode(errors="replace")
        if call(*arguments, buffer, ctypes.c_uint(_TEXT_BYTES)) == 0
        else ""
    )


def _clocks(nvml, handle) -> str:
    found = []
    for kind, what in ((_SM_CLOCK, "SM"), (_MEMORY_CLOCK, "memory")):
        mhz = ctypes.c_uint()
        if nvml.nvmlDeviceGetMaxClockInfo(handle, kind, ctypes.byref(mhz)) == 0:
            found.append(f"{what} at most {mhz.value} MHz")
    return ", ".join(found)


def look() -> Machine:
    """What NVML says about this machine; an empty Machine without a driver. Takes some
    milliseconds, a second at most."""
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError:
        return Machine()
    if nvml.nvmlInit_v2() != 0:
        return Machine()
    try:
        count, version = ctypes.c_uint(), ctypes.c_int()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return Machine()
        gpus = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                gpus.append(
                    RealGpu(
                        index,
                        _text(nvml.nvmlDeviceGetUUID, handle),
                        _text(nvml.nvmlDeviceGetName, handle),
                        _clocks(nvml, handle),
                    )
                )
        known = nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)) == 0
        # 13000 is 13.0
        cuda = f"{version.value // 1000}.{version.value % 1000 // 10}" if known else ""
        return Machine(tuple(gpus), _text(nvml.nvmlSystemGetDriverVersion), cuda)
    finally:
        nvml.nvmlShutdown()


def visible(gpus: Sequence[RealGpu], selection: str | None) -> list[RealGpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, in its order; all of them if it is not set (None).

    It has numbers or beginnings of UUIDs. As in CUDA, everything after the first word that names no
    GPU is ignored.
    """
    if selection is None:
        return list(gpus)
    chosen: list[RealGpu] = []
    for word in selection.split(","):
        word = word.strip()
        matches = [
            gpu
            for gpu in gpus
            if (word == str(gpu.index) if word.isdigit() else word and gpu.uuid.startswith(word))
        ]
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen.append(matches[0])
    return chosen


class GpuLock:
    """The right to lead on one of `gpus`, held until `release` or our death. `take` does not
    wait."""

    def __init__(self, gpus: Sequence[RealGpu]) -> None:
        self._gpus = gpus
        self._descriptor = -1

    def take(self) -> RealGpu | None:
        """The first GPU on which nobody leads; it is ours from now on. None when there is none.
        Raises LaunchError."""
        for gpu in self._gpus:
            descriptor = self._open(gpu)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._descriptor = descriptor
            return gpu
        return None

    def release(self) -> None:
        """Lets others lead. Does nothing when no GPU is held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @staticmethod
    def _open(gpu: RealGpu) -> int:
        """Opens the lock file for reading, which is enough for a lock. The file may be another
        user's, and then O_CREAT is refused in a folder with the sticky bit
        (fs.protected_regular)."""
        path = os.path.join(_LOCK_FOLDER, f"phantora-gpu-{gpu.uuid}.lock")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO would block
        try:
            try:
                return os.open(path, flags)
            except FileNotFoundError:
                descriptor = os.open(path, flags | os.O_CREAT, 0o644)
                with contextlib.suppress(PermissionError):  # another user was faster
                    os.fchmod(descriptor, 0o644)  # whatever our umask: the next user must read it
                return descriptor
        except OSError as error:
            raise LaunchError(
                f"cannot lock the GPU for a leader: {error.strerror}; {path}; remove that file"
            ) from error
