"""Exits with code 1 and does not destroy its process group, as many scripts do.

Exit handlers run in reverse order of registration. This script registers sleep(exit code) before it
imports torch, so the process lives one second longer than the destructors of torch's libraries, and
NCCL's watchdog polls once more in that second.
"""

import ctypes
import sys

libc = ctypes.CDLL(None)
libc.on_exit(ctypes.cast(libc.sleep, ctypes.c_void_p), None)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
work = dist.all_reduce(torch.ones(1 << 20, device="cuda"), async_op=True)
# References that are never dropped: the process group outlives the interpreter.
for held in (work, dist.group.WORLD):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
print("DONE", flush=True)
sys.exit(1)
