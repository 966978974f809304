"""Forks 20 children while another thread uses CUDA, and prints the error that each child got as
`child WORDS`. An alarm ends a child that hangs."""

import os
import signal
import threading

import torch

over = threading.Event()
there = torch.ones(4, device="cuda")


def work():
    while not over.is_set():
        torch.ones(64, device="cuda").add_(1).sum().item()


def child():
    signal.alarm(20)
    said = []
    for use in (
        lambda: torch.ones(1, device="cuda"),
        lambda: there + 1,
        lambda: torch.cuda.synchronize(),
    ):
        try:
            use()
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error).split("\n")[0])
    print("child", "; ".join(said), flush=True)
    os._exit(0)


thread = threading.Thread(target=work)
thread.start()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        child()
    assert os.waitpid(pid, 0)[1] == 0
over.set()
thread.join()
