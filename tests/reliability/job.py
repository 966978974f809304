"""A cheap job to kill: on each node an agent with two ranks, each with a worker, in the roles that
torchrun, its ranks and their DataLoader workers have. It uses CUDA and NCCL through ctypes.

`job.py STEPS`; each rank ends with a line that says what its simulated clock shows.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

RANKS_PER_NODE = 2
WORKER_S = 0.004  # real time that a worker takes for a batch
FP32, HOST_TO_DEVICE = 7, 1
BYTES = 1 << 20


def agent():
    """Starts the ranks; when one fails, ends the others and fails too."""
    node, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, sys.argv[1], "rank"],
            env={
                **os.environ,
                "RANK": str(node * RANKS_PER_NODE + local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(nodes * RANKS_PER_NODE),
            },
        )
        for local in range(RANKS_PER_NODE)
    ]
    left = list(ranks)
    while left:
        pid, status = os.wait()
        left = [rank for rank in left if rank.pid != pid]
        if status == 0:
            continue
        for rank in left:
            rank.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        for rank in left:
            rank.kill()
        sys.exit(1)


def worker(requests, batches):
    """Answers each byte with a byte; ends when its rank does."""
    while os.read(requests, 1):
        time.sleep(WORKER_S)
        os.write(batches, b"b")
    os._exit(0)


def start_worker():
    """A function that asks for a batch and waits for it."""
    (requests, ask), (take, batches) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.set_inheritable(requests, True)
        os.set_inheritable(batches, True)
        os.execv(
            sys.executable, [sys.executable, __file__, "0", "worker", str(requests), str(batches)]
        )
    os.close(requests)
    os.close(batches)

    def batch():
        os.write(ask, b"a")
        if not os.read(take, 1):
            sys.exit("a worker ended")

    return batch


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def rank(steps):
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    batch = start_worker()
    cuda = ctypes.CDLL(None)
    cuda.phantora_elapsed_ns.restype = ctypes.c_uint64

    def do(name, *arguments):
        error = getattr(cuda, name)(*arguments)
        if error:
            sys.exit(f"{name}: error {error}")

    memory, host, comm, stream = (ctypes.c_void_p() for _ in range(4))
    do("cudaSetDevice", int(os.environ["LOCAL_RANK"]))
    do("cudaMalloc", ctypes.byref(memory), ctypes.c_size_t(2 * BYTES))
    do("cudaMallocHost", ctypes.byref(host), ctypes.c_size_t(BYTES))
    do("cudaStreamCreate", ctypes.byref(stream))
    do("ncclCommInitRank", ctypes.byref(comm), size, Id(b"the job's communicator"), number)
    result = ctypes.c_void_p(memory.value + BYTES)
    while os.environ.get("JOB_BUSY_RANK") == str(number):
        pass  # until a limit ends it
    taken = []
    while os.environ.get("JOB_HUNGRY_RANK") == str(number):
        taken.append(b"x" * (1 << 24))  # until the kernel ends it
    for step in range(steps):
        batch()
        do("cudaMemcpyAsync", memory, host, ctypes.c_size_t(BYTES), HOST_TO_DEVICE, stream)
        do("ncclAllReduce", memory, result, ctypes.c_size_t(BYTES // 4), FP32, 0, comm, stream)
        if step % 4 == number % 4:
            do("cudaStreamSynchronize", stream)
    do("cudaDeviceSynchronize")
    os.write(1, f"rank {number} at {cuda.phantora_elapsed_ns()}\n".encode())
    do("ncclCommDestroy", comm)


if len(sys.argv) == 2:
    agent()
elif sys.argv[2] == "rank":
    rank(int(sys.argv[1]))
else:
    worker(*map(int, sys.argv[3:]))
