"""A long job for soak.py: on each node an agent with eight ranks, which compute beside two
collectives that share the network, and make and free what jobs make in every step. It uses CUDA and
NCCL through ctypes.

`soak_job.py STEPS MARKS BYTES`; MARKS times each rank says what it holds and has sent:
`MARK STEP RANK KIB MESSAGES SIMULATED_NS`.
"""

import ctypes
import os
import re
import subprocess
import sys

RANKS_PER_NODE = 8
FP32, SUM = 7, 0
SIZE = 2048
SENT_SEQ = 24  # where it is in the rank statistics (docs/wire-protocol.md)


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def agent(arguments):
    node, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, "rank"],
            env={
                **os.environ,
                "RANK": str(node * RANKS_PER_NODE + local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(nodes * RANKS_PER_NODE),
            },
        )
        for local in range(RANKS_PER_NODE)
    ]
    for _ in ranks:
        _, status = os.wait()
        if status:
            for rank in ranks:
                rank.kill()
            sys.exit(1)


def messages_sent():
    """The counter of this process's messages to the hub. It is read where it is mapped: closing the
    file would release the lock by which the hub knows that the process lives."""
    with open("/proc/self/maps") as maps:
        begin = re.search(r"^(\w+)-.*/ranks/", maps.read(), re.MULTILINE)[1]
    return ctypes.c_uint64.from_address(int(begin, 16) + SENT_SEQ)


def resident_kib():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])


def rank(steps, marks, size):
    number, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world = int(os.environ["WORLD_SIZE"])
    cuda = ctypes.CDLL(None)
    cuda.phantora_elapsed_ns.restype = ctypes.c_uint64
    count, one = ctypes.c_size_t(size // 4), ctypes.byref(ctypes.c_float(1.0))

    def do(name, *arguments):
        error = getattr(cuda, name)(*arguments)
        if error:
            sys.exit(f"{name}: error {error}")

    def made(name, *arguments):
        thing = ctypes.c_void_p()
        do(name, ctypes.byref(thing), *arguments)
        return thing

    def all_reduce(comm, stream):
        do("ncclAllReduce", memory, memory, count, FP32, SUM, comm, stream)

    do("cudaSetDevice", local)
    memory = made("cudaMalloc", ctypes.c_size_t(size))
    matrix = made("cudaMalloc", ctypes.c_size_t(4 * SIZE * SIZE))
    compute, near, far = (made("cudaStreamCreate") for _ in range(3))
    handle = made("cublasCreate_v2")
    do("cublasSetStream_v2", handle, compute)
    node = number // RANKS_PER_NODE
    server = made("ncclCommInitRank", RANKS_PER_NODE, Id(b"server %d" % node), local)
    rail = made("ncclCommInitRank", world // RANKS_PER_NODE, Id(b"rail %d" % local), node)
    sent = messages_sent()
    for step in range(1, steps + 1):
        for _ in range(2):
            shape = (SIZE, SIZE, SIZE, one, matrix, SIZE, matrix, SIZE, one, matrix, SIZE)
            do("cublasSgemm_v2", handle, 0, 0, *shape)
        event = made("cudaEventCreate")
        do("cudaEventRecord", event, compute)
        do("cudaStreamWaitEvent", near, event, 0)
        all_reduce(server, near)
        all_reduce(rail, far)
        scratch = made("cudaMalloc", ctypes.c_size_t((1 + step % 7) << 20))
        do("cudaEventRecord", event, far)
        do("cudaStreamWaitEvent", compute, event, 0)
        do("cudaEventDestroy", event)
        do("cudaFree", scratch)
        if step % 4 == number % 4:
            do("cudaStreamSynchronize", near)
        if step % 100 == 50:
            part = ctypes.c_void_p()
            do("ncclCommSplit", server, local % 2, local, ctypes.byref(part), None)
            do("ncclCommDestroy", part)
        if step % (steps // marks) == 0:
            do("cudaDeviceSynchronize")
            said = step, number, resident_kib(), sent.value, cuda.phantora_elapsed_ns()
            os.write(1, f"MARK {' '.join(map(str, said))}\n".encode())


if __name__ == "__main__":
    if sys.argv[-1] == "rank":
        rank(*map(int, sys.argv[1:-1]))
    else:
        agent(sys.argv[1:])
