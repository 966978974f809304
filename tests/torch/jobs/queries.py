"""One rank: asks as often as told about work that is over, then until work is over."""

import sys
import time

import torch
from common import say

OFTEN = int(sys.argv[1])

values = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
over, end = torch.cuda.Event(), torch.cuda.Event()
over.record()
torch.cuda.synchronize()
start = time.perf_counter_ns()
ready = [over.query() and torch.cuda.current_stream().query() for _ in range(OFTEN)]
for _ in range(20):
    values = values @ values
end.record()
asked = 0
while not end.query():
    asked += 1
say("RESULT", ready=all(ready), asked=asked, clock=time.perf_counter_ns() - start)
