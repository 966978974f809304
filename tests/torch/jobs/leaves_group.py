"""Ends as many scripts do, without destroying its process group, and with exit code 1.

What is registered first runs last at exit. So for a second after the destructors of torch's
libraries have run, NCCL's watchdog may still look: sleep(exit code).
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
# somebody still holds them when the interpreter ends
for held in (work, dist.group.WORLD):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
print("DONE", flush=True)
sys.exit(1)
