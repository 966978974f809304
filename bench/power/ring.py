"""A kernel with the occupancy and the memory traffic of NCCL's ring, for one GPU.

Why it exists: a single GPU runs no ring, but what a ring does to compute beside it is that it
holds 24 multiprocessors, moves bytes through the L2 cache and draws power. This kernel does the
three: one block per channel, 544 threads, steps of one chunk each, paced like a link. A gather
reads a chunk from a buffer of the channel and writes it to the result and to another buffer (the
peer's, over NVLink, in a real ring); a reduction reads a buffer and the input, adds, and writes a
buffer. Held against measured pairs of kernel and collective in bench/accuracy/data.
"""

from __future__ import annotations

import torch

CHANNELS = 24
CHUNK_BYTES = 1 << 19  # per channel and step: NCCL's 4 MiB buffer of eight steps

SOURCE = r"""
extern "C" __global__ void __launch_bounds__(544, 1)
ring(uint4 *buffers, uint4 *result, unsigned *control, int chunk_words, int result_words, int steps,
     int pace_ns, int reduces)
{
    __shared__ int ended;
    uint4 *mine = buffers + (size_t)blockIdx.x * chunk_words * 2;
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    size_t at = (size_t)blockIdx.x * chunk_words;
    int step = 0;
    for (; step < steps; step++) {
        if (threadIdx.x == 0) {
            unsigned long long due = begin + (unsigned long long)step * pace_ns;
            do {
                asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
                ended = *(volatile unsigned *)control;
            } while (now < due && !ended);
        }
        __syncthreads();
        if (ended) break;
        const uint4 *from = mine + (step & 1) * chunk_words;
        uint4 *to = mine + (1 - (step & 1)) * chunk_words, *out = result + at;
        if (reduces == 2) { /* waits only */
        } else if (reduces) {
#pragma unroll 4
            for (int i = threadIdx.x; i < chunk_words; i += 544) {
                float4 a = *(const float4 *)(from + i), b = *(const float4 *)(out + i);
                a.x += b.x; a.y += b.y; a.z += b.z; a.w += b.w;
                *(float4 *)(to + i) = a;
            }
        } else {
#pragma unroll 4
            for (int i = threadIdx.x; i < chunk_words; i += 544) {
                uint4 a = from[i];
                to[i] = a;
                out[i] = a;
            }
        }
        at += (size_t)gridDim.x * chunk_words;
        if (at + chunk_words > (size_t)result_words) at = (size_t)blockIdx.x * chunk_words;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        atomicAdd(control + 1, (unsigned)step);
        atomicMax(control + 2, (unsigned)((now - begin) / 1000));
    }
}
"""

GATHER, REDUCE, WAIT = 0, 1, 2


class Ring:
    """Rings on the current device; `control` holds: stop flag, steps done, microseconds."""

    def __init__(self, result_bytes: int = 1 << 29, channels: int = CHANNELS) -> None:
        self.channels = channels
        self.kernel = torch.cuda._compile_kernel(SOURCE, "ring")
        self.buffers = torch.randn(channels * 2 * CHUNK_BYTES // 4, device="cuda")
        self.result = torch.randn(result_bytes // 4, device="cuda")
        self.control = torch.zeros(4, dtype=torch.int32, device="cuda")

    def launch(self, kind: int, gigabytes_per_s: float, steps: int) -> None:
        """On the current stream. `gigabytes_per_s`: of all channels; 0: as fast as it goes."""
        pace = CHUNK_BYTES * self.channels / gigabytes_per_s if gigabytes_per_s else 0
        self.kernel(
            grid=(self.channels, 1, 1),
            block=(544, 1, 1),
            args=[
                self.buffers,
                self.result,
                self.control,
                CHUNK_BYTES // 16,
                self.result.numel() // 4,
                steps,
                int(pace),
                kind,
            ],
        )

    def steps_of(self, count_bytes: int) -> int:
        """Steps that move so many bytes through all channels."""
        return max(1, round(count_bytes / (CHUNK_BYTES * self.channels)))

    def reset(self) -> None:
        self.control.zero_()

    def stop(self) -> None:
        """On the current stream: rings that run end after their step."""
        self.control[0:1].fill_(1)
