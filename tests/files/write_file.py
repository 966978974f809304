"""Runs with the interceptor preloaded: makes the writes that its standard input lists, as JSON, on
the file that it is given, and on a model of it in memory; `write_file.py FILE`.

A write is [call, offset, pieces], a piece [byte, length]. The file must hold what the model holds,
and each call must return what it wrote."""

import ctypes
import json
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.write.restype = libc.pwrite.restype = ctypes.c_ssize_t
libc.write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
libc.pwrite.argtypes = (*libc.write.argtypes, ctypes.c_int64)


def main():
    for writes in json.load(sys.stdin):
        model = bytearray()
        file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for call, offset, pieces in writes:
            parts = [bytes([byte]) * length for byte, length in pieces]
            data = b"".join(parts)
            if call == "append":
                offset = len(model)
            elif call != "pwrite":
                os.lseek(file, offset, os.SEEK_SET)
            if call == "pwrite":
                written = libc.pwrite(file, data, len(data), offset)
            elif call == "writev":
                written = os.writev(file, parts)
            elif call == "append":
                appending = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
                written = libc.write(appending, data, len(data))
                os.close(appending)
            else:
                written = libc.write(file, data, len(data))
            assert written == len(data), (call, written, ctypes.get_errno())
            if call in ("write", "writev"):
                assert os.lseek(file, 0, os.SEEK_CUR) == offset + len(data)
            if data:
                model.extend(bytes(max(0, offset + len(data) - len(model))))
                model[offset : offset + len(data)] = data
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, "rb") as stored:
            assert stored.read() == model, writes
    print("OK")


main()
