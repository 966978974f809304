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
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, the longest of those used here
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_LOCK_FOLDER = "/tmp"  # not TMPDIR: every run on this machine must look in the same place
SHARED_WAIT_S = 600.0
"""How long a run waits for another user's leader. Whoever holds the lock may not be one."""


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
    wait.

    A user's own runs exclude one another by a file that only this user can reach. Runs of different
    users do so by a file in a folder that all share, where anybody can stand in the way: that one
    is advice. `remark`: why it was not taken, None when it was.
    """

    def __init__(self, gpus: Sequence[RealGpu]) -> None:
        self._gpus = gpus
        self._descriptors: list[int] = []
        self._began = time.monotonic()
        self.remark: str | None = None

    def take(self) -> RealGpu | None:
        """The first GPU on which nobody leads; it is ours from now on. None when there is none."""
        for gpu in self._gpus:
            self.remark = None
            if self._lock(self._open_own(gpu)) and self._lock(self._open_shared(gpu), advice=True):
                return gpu
            self.release()
        return None

    def release(self) -> None:
        """Lets others lead. Does nothing when no GPU is held."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _lock(self, file: tuple[str, int] | None, advice: bool = False) -> bool:
        """Whether nobody else has a lock on the file, which is then ours. True without a file, and
        when somebody has ignored for too long that it is only advice."""
        if file is None:
            return True
        path, descriptor = file
        self._descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited_s = time.monotonic() - self._began
            if advice and waited_s >= SHARED_WAIT_S:
                self.remark = f"another user's process has held {path} for {waited_s:.0f} s"
                return True
            return False
        return True

    def _open_own(self, gpu: RealGpu) -> tuple[str, int] | None:
        """The user's own lock file."""
        folder = os.path.join(_LOCK_FOLDER, f"phantora-ns-{os.getuid()}")
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                self.remark = f"{folder} is not a folder of this user's"
                return None
            os.chmod(folder, 0o700)
        except OSError as error:
            self.remark = f"{folder}: {error.strerror}"
            return None
        return self._open(os.path.join(folder, f"gpu-{gpu.uuid}.lock"))

    def _open_shared(self, gpu: RealGpu) -> tuple[str, int] | None:
        return self._open(os.path.join(_LOCK_FOLDER, f"phantora-gpu-{gpu.uuid}.lock"))

    def _open(self, path: str) -> tuple[str, int] | None:
        """Opens a lock file for reading, which is enough for a lock. The file may be another
        user's, and then O_CREAT is refused in a folder with the sticky bit
        (fs.protected_regular)."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO would block
        try:
            try:
                descriptor = os.open(path, flags)
            except FileNotFoundError:
                descriptor = os.open(path, flags | os.O_CREAT, 0o644)
                with contextlib.suppress(PermissionError):  # another user was faster
                    os.fchmod(descriptor, 0o644)  # whatever our umask: the next user must read it
        except OSError as error:
            self.remark = f"{path}: {error.strerror}"
            return None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return path, descriptor
        os.close(descriptor)
        self.remark = f"{path} is no file"
        return None
