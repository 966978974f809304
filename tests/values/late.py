"""Runs as two ranks or more, without torch: rank 0 reads a sum while the others are late or gone.

`late.py late`: rank 1 comes after two seconds, which are half an hour on rank 0's monotonic clock
(c/fast_clock.c). `late.py gone`: the others end without their parts, rank 1 first. Prints what each rank has read.
"""

import ctypes
import os
import sys
import time

INT64, SUM, TO_DEVICE, TO_HOST, NON_BLOCKING = 4, 0, 1, 2, 1


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    lib = ctypes.CDLL(None)

    class Id(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]

    comm, part, total = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    word, size = ctypes.c_int64(21), ctypes.c_size_t(8)
    assert lib.ncclCommInitRank(ctypes.byref(comm), ranks, Id(b"one"), rank) == 0
    assert lib.cudaMalloc(ctypes.byref(part), size) == 0
    assert lib.cudaMalloc(ctypes.byref(total), size) == 0
    assert lib.cudaMemcpy(part, ctypes.byref(word), size, TO_DEVICE) == 0
    if rank == 0:
        lib.hurry()
    elif sys.argv[1] == "gone":
        time.sleep((rank - 1) / 5)
        os._exit(0)
    else:
        time.sleep(2)
    # The copy does not wait for this stream. Only the result itself is waited for, as when a small
    # operator runs on the CPU.
    stream = ctypes.c_void_p()
    assert lib.cudaStreamCreateWithFlags(ctypes.byref(stream), NON_BLOCKING) == 0
    assert lib.ncclAllReduce(part, total, ctypes.c_size_t(1), INT64, SUM, comm, stream) == 0
    assert lib.cudaMemcpy(ctypes.byref(word), total, size, TO_HOST) == 0
    os.write(1, f"rank {rank} reads {word.value}\n".encode())


main()
