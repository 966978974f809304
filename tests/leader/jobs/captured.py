"""Runs as two ranks, one of them a leader: both capture an all-reduce. The leader's PyTorch must
raise an error with the line that explains the refusal."""

import os

import torch
import torch.distributed as dist


def captured(x):
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        dist.all_reduce(x)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    x = torch.empty(1 << 20, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    refusal = None
    try:
        captured(x)
    except dist.DistBackendError as error:
        refusal = str(error)
    if os.environ["RANK"] == os.environ["LEADS"]:
        assert "invalid usage" in refusal and "keep communication out of graphs" in refusal, refusal
    else:
        assert refusal is None, "a simulated rank's graph holds it"
    print("fine", flush=True)
    os._exit(0)  # a process group whose communicator has failed is not torn down


main()
