"""A loop of small operators with and without observers, by the job's own clock."""

import ctypes
import statistics
import time

import torch

ROUNDS, OPERATORS = 40, 500
torch.cuda.init()
device = torch.zeros(1, device="cuda")  # starts the clock and the values library
tensor, other = torch.ones(4), torch.ones(4)
# a view holds its base from C++, so observing an operator need not ask Python for its tensors
views = tensor.view(2, 2), other.view(2, 2)


def loop(observed: bool) -> int:
    torch.autograd._enable_record_function(observed)
    begin = time.perf_counter_ns()
    for _ in range(OPERATORS):
        tensor.add_(other)
    return time.perf_counter_ns() - begin


# In pairs, because the speed of a core may change from one moment to the next. The median of them, because what is
# taken off for observing may leave a round on a busy machine without any time.
pairs = [(loop(True), loop(False)) for _ in range(ROUNDS)]
longer = statistics.median(observed - alone for observed, alone in pairs)
alone = statistics.median(alone for _, alone in pairs)

# Each observation takes 3 us, and 5 us more are subtracted for PyTorch's own work, of which there is none here. Python
# takes less than 5 us between two of them. More is to be subtracted than has passed, so the next loop pays the rest.
interceptor = ctypes.CDLL(None)
begin = time.perf_counter_ns()
for _ in range(4000):
    interceptor.phantora_values_observe_begin(1)
    until = time.monotonic_ns() + 3000  # this clock stays real and charges the job nothing
    while time.monotonic_ns() < until:
        pass
    interceptor.phantora_values_observe_end()
for _ in range(100000):
    pass
print(round(longer), round(alone), time.perf_counter_ns() - begin)
