"""How much a memory-bound kernel moves: from its name, its launch and, where the layout is known,
its scalar parameters.

Why it exists: most kernels of a training step read and write each element once. The names of
PyTorch's kernels give the types; their launches give the number of elements. Each reader cites the
source in PyTorch 2.11 that it relies on (aten/src/ATen/native/cuda). Rule: a reader that meets
something unexpected returns None; it makes nothing up.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phantora_ns.kernels.binary.names import (
    KernelName,
    lambda_arguments,
    split_arguments,
    template_arguments,
    type_bytes,
)
from phantora_ns.kernels.signature import Kernel

CHUNK = 65536  # ForeachFunctors / MultiTensorApply.cuh: kChunkSize, elements per block
MAX_DIMS = 25  # OffsetCalculator.cuh
SECTOR = 32  # bytes: the L2 cache's smallest fetch
WARP = 32  # threads whose neighbouring elements one instruction reads


LINE = 128  # bytes of a line of the L1 cache
Points = tuple[tuple[int, float], ...]
"""A line through points (x, y)."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The share of a sector that an element fetches, by the elements of a row, where neighbours are a line or more
    apart. A short row comes back to sectors that its block has fetched; `lines`: strides of whole lines use few of the
    cache's sets, and lose them sooner; `others`: other strides; `long`: longer rows; `whole`: rows of whole blocks."""

    lines: Points
    others: Points
    long: Points
    whole: Points


# By the elements of a thread, 4 of at most 2 bytes or 2 larger ones, from 8,400 batches of transposes on two H200s:
# python -m bench.kernels.strided --shares bench/kernels/batched.jsonl.xz
FETCHED = {
    4: Fetched(
        lines=((32, 0.63), (112, 0.65)),
        others=((32, 0.32), (80, 0.35), (96, 0.40), (112, 0.53)),
        long=((128, 0.74), (160, 0.80), (192, 0.85), (224, 0.90), (320, 0.98), (576, 1.02)),
        whole=((512, 0.90), (1024, 0.94), (2048, 0.96)),
    ),
    2: Fetched(
        lines=((32, 0.52), (96, 0.52)),
        others=((32, 0.33), (64, 0.37), (80, 0.40), (96, 0.49)),
        long=((112, 0.66), (128, 0.79), (160, 0.83), (192, 0.87), (224, 0.89), (320, 0.94)),
        whole=((256, 0.91), (512, 0.92), (1024, 0.93)),
    ),
}
# Of that share, what neighbours fetch that are so many bytes apart, less than a line
FETCHED_BY_STRIDE = ((32, 0.36), (48, 0.44), (64, 0.45), (96, 0.71), (LINE, 1.0))
LEAST_FETCHED = 0.28
FAR = 8192  # bytes between neighbours, from which on long rows take longer
FAR_BY_ROW = ((256, 1.0), (768, 1.09))


@dataclass(frozen=True, slots=True)
class TensorLists:
    """How a foreach launch's metadata parameter is laid out (MultiTensorApply.cuh): for each depth
    depth_to_max_tensors, depth_to_max_blocks, and the bytes of block_index_t."""

    tensors: tuple[int, int, int, int, int]
    blocks: int
    index_bytes: int

    def places(self, depth: int, fused: bool) -> tuple[int, int, int, int]:
        """Offsets of the tensors' sizes, each block's tensor, and each block's chunk; bytes of the
        parameter. Fused lists also carry the addresses of the step counters."""
        most = self.tensors[depth - 1]
        sizes_at = depth * most * 8
        tensor_at = sizes_at + most * 8 * (2 if fused else 1)
        chunk_at = (tensor_at + self.blocks * self.index_bytes + 3) // 4 * 4
        return sizes_at, tensor_at, chunk_at, (chunk_at + 4 * self.blocks + 4 + 7) // 8 * 8


# The second one: torch 2.14 and later, built with CUDA 13, in kernels with up to 32 KB of parameters.
TENSOR_LISTS = (
    TensorLists((110, 64, 48, 36, 30), 320, 1),
    TensorLists((770, 448, 336, 252, 210), 2240, 2),
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a launch moves: bytes, elements handled, and the family whose fitted rates apply.

    `scattered`: bytes of the cache sectors that are fetched for a single element, because the next
    thread's element lies in another sector.
    """

    bytes: float
    elements: float
    family: str
    scattered: float = 0.0


def _scalar(kernel: Kernel, offset: int, form: str) -> int | None:
    size = struct.calcsize(form)
    if len(kernel.parameters) < offset + size:
        return None
    return struct.unpack_from("<" + form, kernel.parameters, offset)[0]


def _count(kernel: Kernel, per_block: int) -> int:
    """Elements of an elementwise launch: its first parameter is `int N`, and the grid rounds N up
    to whole blocks."""
    n = _scalar(kernel, 0, "i")
    if n is not None and (kernel.blocks - 1) * per_block < n <= kernel.blocks * per_block:
        return n
    return kernel.blocks * per_block


def operand_bytes(functor: str, tensors: int) -> float:
    """Bytes per element of all operands of an elementwise functor with `tensors` operands, outputs
    included.

    The types come from the functor's own template arguments or from the lambda's parameters. A
    comparison writes bool; a functor whose types cannot be read counts 4 bytes per operand.
    """
    if "bfloat16_copy_kernel_cuda" in functor or "float16_copy_kernel_cuda" in functor:
        arguments = lambda_arguments(functor)
        return (type_bytes(arguments[0]) or 4 if arguments else 4) + 2
    types = None
    for name in ("BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor"):
        found = template_arguments(functor, name)
        if len(found) >= 3:
            first, second, out = (type_bytes(t) or 4 for t in found[:3])
            types = (
                [first, second, out]
                if name == "BinaryFunctor"
                else [first if name == "BUnaryFunctor" else second, out]
            )
            break
    if types is None:
        arguments = [type_bytes(a) for a in lambda_arguments(functor)]
        if not arguments:
            inner = functor[functor.find("<") + 1 : functor.rfind(">")] if "<" in functor else ""
            arguments = [size for size in (type_bytes(a) for a in split_arguments(inner)) if size][
                :1
            ]
        arguments = [a or 4 for a in arguments]
        if not arguments:
            return 4.0 * tensors
        compares = "compare" in functor or "CompareEq" in functor
        inputs = (
            (arguments * tensors)[: max(0, tensors - 1)]
            if len(arguments) < tensors - 1
            else arguments[: tensors - 1]
        )
        types = [*inputs, 1 if compares else arguments[0]]
    return float(sum((types + [types[-1]] * tensors)[:tensors]))


def _tensor_count(text: str, functor: str) -> int:
    match = re.search(r"std::array<char\s*\*, (\d+)ul>", text)
    if match:
        return int(match[1])
    if any(name in functor for name in ("AUnaryFunctor", "BUnaryFunctor", "OnSelf")):
        return 2
    if "BinaryFunctor" in functor or "CUDAFunctor_" in functor:
        return 3
    return 1 + max(1, len(lambda_arguments(functor)))


def vectorized(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`vectorized_elementwise_kernel<vec, functor, array<char*, n>>`: contiguous data, 8 elements per
    thread (16 if all operands have one byte)."""
    functor = name.arguments[1] if len(name.arguments) > 1 else ""
    tensors = _tensor_count(name.text, functor)
    size = operand_bytes(functor, tensors)
    # CUDALoops.cuh, elems_per_thread: 16 if the operands have one byte each, else 8 on sm_90 and
    # later with the vectorised path, 4 before. The grid is rounded up, so N decides where it is
    # known.
    family = "fill" if tensors == 1 else "elementwise"
    for per_thread in (8, 16, 4):
        n = _scalar(kernel, 0, "i")
        per_block = per_thread * kernel.block_threads
        if n is not None and (kernel.blocks - 1) * per_block < n <= kernel.blocks * per_block:
            return Traffic(n * size, n, family)
    elements = kernel.blocks * kernel.block_threads * (16 if size <= tensors else 8)
    return Traffic(elements * size, elements, family)


def unrolled(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`unrolled_elementwise_kernel<functor, array<char*, n>, per_thread, ..., Load, Store>`, with
    casts if the name says so."""
    functor = name.arguments[0] if name.arguments else ""
    tensors = _tensor_count(name.text, functor)
    elements = _count(kernel, (name.integer(2) or 4) * kernel.block_threads)
    size = operand_bytes(functor, tensors)
    casts = "LoadWithCast" in name.text
    if casts and "copy_kernel" in functor:
        # Parameters: N at 0, data at 8, then LoadWithCast {type, u32 size} at 28 and StoreWithCast
        # {type, u32 size} at 36.
        sizes = (
            (_scalar(kernel, 32, "i"), _scalar(kernel, 40, "i"))
            if len(kernel.parameters) == 44
            else (None, None)
        )
        if set(sizes) <= {1, 2, 4, 8, 16}:
            size = sum(sizes)
        else:
            # The lambda's type is the output's. The input has a different type: most often the
            # other one of 2 and 4 bytes.
            out = size / tensors
            size = out + (2 if out > 2 else 4)
    return Traffic(
        elements * size, elements, "elementwise_cast" if casts else "elementwise_unrolled"
    )


def _interpolated(points: Points, at: int) -> float:
    """The value at `at` of a line through the points (x, y), level beyond them; x is logarithmic."""
    xs, ys = zip(*points, strict=True)
    return float(np.interp(math.log(max(at, 1)), np.log(xs), ys))


def _scattered_operands(kernel: Kernel, tensors: int, per_thread: int) -> float:
    """How many operands of a strided launch fetch a sector for each element, because neighbouring elements are
    apart; most often these are transposed. Those that fetch less count as a part of one.

    The lambda of gpu_kernel_impl_nocast (CUDALoops.cuh) holds an OffsetCalculator<tensors>
    (OffsetCalculator.cuh): int dims, {divisor, two magic numbers}[MAX_DIMS], uint32 stride in
    bytes[MAX_DIMS][tensors]; the fastest dimension comes first.
    """
    # The compiler puts it before or after the operands' addresses.
    for at in (8, 8 + 8 * tensors):
        dims = _scalar(kernel, at, "i")
        end = at + 4 + MAX_DIMS * 4 * (3 + tensors)
        if dims is None or not 0 < dims <= MAX_DIMS or len(kernel.parameters) < end:
            continue
        sizes = struct.unpack_from(f"<{3 * dims}I", kernel.parameters, at + 4)[::3]
        if math.prod(sizes) != _scalar(kernel, 0, "i"):
            continue
        strides = struct.unpack_from(f"<{tensors}I", kernel.parameters, at + 4 + MAX_DIMS * 12)
        block = per_thread * kernel.block_threads
        return sum(fetched(stride, sizes[0], per_thread, block) for stride in strides)
    return 0.0


def fetched(stride: int, row: int, per_thread: int, block: int) -> float:
    """How much of a sector each element of one operand fetches. Neighbouring elements of the result are `stride`
    bytes apart in the operand, a row of the result has `row` elements, and a block of threads takes `block`. It is
    less than a sector where rows are short, since a block then needs sectors that it has fetched already, and where
    several elements share a line of the L1 cache."""
    if stride < SECTOR or row < WARP:
        return 0.0
    shares = FETCHED[4 if per_thread > 2 else 2]
    if row % block == 0:
        points = shares.whole
    else:
        points = (shares.others if stride % LINE else shares.lines) + shares.long
    share = _interpolated(points, row) * _interpolated(FETCHED_BY_STRIDE, stride)
    if stride >= FAR:
        share *= _interpolated(FAR_BY_ROW, row)
    return max(LEAST_FETCHED, share)


def strided(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`elementwise_kernel<threads, per_thread, gpu_kernel_impl...<functor>>`: strided or broadcast
    operands."""
    per_thread = name.integer(1) or 4
    functor = name.arguments[2] if len(name.arguments) > 2 else ""
    start = functor.find("gpu_kernel_impl")
    inner = functor[functor.find("<", start) + 1 :] if start >= 0 else functor
    nested = split_arguments(inner)
    tensors = _tensor_count("", nested[0] if nested else inner)
    elements = _count(kernel, per_thread * kernel.block_threads)
    moved = elements * operand_bytes(nested[0] if nested else inner, tensors)
    if "nocast" not in functor:
        return Traffic(moved, elements, "strided_cast")
    return Traffic(
        moved,
        elements,
        f"strided_{'narrow' if per_thread > 2 else 'wide'}",
        elements * SECTOR * _scattered_operands(kernel, tensors, per_thread),
    )


def _list_elements(kernel: Kernel, depth: int, fused: bool) -> int | None:
    """Elements of a foreach launch, from the tensor sizes in its metadata parameter, which is the
    first. The layout is the largest that the parameters have room for."""
    for lists in reversed(TENSOR_LISTS):
        sizes_at, tensor_at, chunk_at, _ = lists.places(depth, fused)
        if len(kernel.parameters) >= chunk_at + 4 * lists.blocks:
            break
    else:
        return None
    most = lists.tensors[depth - 1]
    if kernel.gx > lists.blocks:
        return None
    index = "B" if lists.index_bytes == 1 else "H"
    sizes = struct.unpack_from(f"<{most}q", kernel.parameters, sizes_at)
    tensors = struct.unpack_from(f"<{kernel.gx}{index}", kernel.parameters, tensor_at)
    chunks = struct.unpack_from(f"<{kernel.gx}i", kernel.parameters, chunk_at)
    total = 0
    for tensor, chunk in zip(tensors, chunks):
        if tensor >= most or chunk < 0 or sizes[tensor] <= chunk * CHUNK:
            return None
        total += min(CHUNK, sizes[tensor] - chunk * CHUNK)
    return total


OVER_LISTS = "multi_tensor_apply_kernel"
"""The function of launches over lists of tensors: fused optimizers and foreach operators."""


def foreach(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`multi_tensor_apply_kernel<Metadata<depth>, Functor<T, ...>, ...>`: a block handles a chunk
    of 65,536 elements."""
    if len(name.arguments) < 2:
        return None
    metadata, functor = name.arguments[0], name.arguments[1]
    match = re.search(r"<(\d+)>", metadata)
    depth = int(match[1]) if match else 1
    arguments = split_arguments(functor[functor.find("<") + 1 : functor.rfind(">")])
    sizes = [size for size in map(type_bytes, arguments) if size]
    size = sizes[0] if sizes else 4
    numbers = [int(a) for a in arguments if re.fullmatch(r"\d+", a)]
    fused = "FusedOptimizer" in metadata
    known = (
        _list_elements(kernel, depth, fused) if 1 <= depth <= len(TENSOR_LISTS[0].tensors) else None
    )
    elements = kernel.blocks * CHUNK if known is None else known
    if fused:
        # Every tensor but the gradient is read and written.
        return Traffic(elements * size * (2 * depth - 1), elements, "optimizer")
    if "Norm" in functor:
        return Traffic(elements * size, elements, "foreach")
    if "CopyFunctor" in functor:
        copied = (
            [
                s
                for s in (
                    type_bytes(a)
                    for a in split_arguments(name.arguments[2].partition("<")[2].rstrip("> "))
                )
                if s
            ]
            if len(name.arguments) > 2
            else []
        )
        return Traffic(
            elements * (sum(copied[:2]) if len(copied) > 1 else 2 * size), elements, "foreach"
        )
    read = numbers[1] if len(numbers) > 1 and numbers[1] <= depth else depth
    return Traffic(elements * size * (read + 1), elements, "foreach")


def concatenate(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`CatArrayBatchedCopy*<T, index, dims, batch, ...>(out*, CatArrInputTensorMetadata, ...)`: one
    grid row per input (Shape.cu).

    The grid's size depends on the GPU, not on the inputs. The inputs' sizes are `nElements[batch]`
    in the metadata, after `input*[batch], offset[batch], dimSize[batch]`.
    """
    size, batch = type_bytes(name.arguments[0]) if name.arguments else None, name.integer(3)
    if size is None or not batch or len(name.arguments) < 4 or kernel.gy > batch:
        return None
    index_bytes = type_bytes(name.arguments[1]) or 4
    at = 8 + batch * (8 + 2 * index_bytes)
    if len(kernel.parameters) < at + batch * index_bytes:
        return None
    counts = struct.unpack_from(
        f"<{kernel.gy}{'I' if index_bytes == 4 else 'Q'}", kernel.parameters, at
    )
    elements = sum(counts)
    return Traffic(2.0 * elements * size, elements, "concatenate")


def chunk_concatenate(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`chunk_cat_cuda_kernel<out, in>`: FSDP's copy into the reduce-scatter buffer; each thread
    writes 16 bytes of output."""
    sizes = [type_bytes(a) for a in name.arguments[:2]]
    if len(sizes) < 2 or None in sizes:
        return None
    elements = kernel.blocks * kernel.block_threads * 16 / sizes[0]
    return Traffic(elements * (sizes[0] + sizes[1]), elements, "chunk_concatenate")


def split_copy(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`split_with_sizes_copy_out_contiguous_no_cast_kernel(..., int64 src_stride, int64
    num_chunks)`: FSDP's copy out."""
    stride, chunks = _scalar(kernel, 40, "q"), _scalar(kernel, 48, "q")
    if not stride or not chunks or not 0 < stride < 1 << 44 or not 0 < chunks < 1 << 24:
        return None
    return Traffic(2.0 * stride * chunks, stride * chunks / 4, "split_copy")


def layer_norm(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`vectorized_layer_norm_kernel<T, ...>(int N, ...)` and its gradients: one block per row, if N
    is known."""
    size = type_bytes(name.arguments[0]) if name.arguments else None
    if size is None:
        return None
    forward = name.base == "vectorized_layer_norm_kernel"
    width = _scalar(kernel, 0 if forward else 48, "i")  # the gradients take six pointers first
    if not width or not 0 < width < 1 << 24:
        return None
    elements = kernel.blocks * width
    return Traffic(
        elements * size * (2 if forward else 3), elements, "norm" if forward else "norm_backward"
    )


def norm_weight(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`GammaBetaBackward*<T, ...>(int64 M, int64 N, dY*, X*, ...)`: reads the gradient and the
    input once."""
    rows, width = _scalar(kernel, 0, "q"), _scalar(kernel, 8, "q")
    size = type_bytes(name.arguments[0]) if name.arguments else None
    if not rows or not width or not size or not 0 < rows * width < 1 << 44:
        return None
    return Traffic(2.0 * rows * width * size, rows * width, "norm_weight")


def softmax(kernel: Kernel, name: KernelName) -> Traffic | None:
    """Softmax.cu: one block per row; the row's length is a parameter.

    The plain kernels read the row again in each pass (forward: maximum, sum, result; backward: sum,
    result). The Reg and Smem kernels keep the row; the warp kernels take a batch of rows.
    """
    backward = "ackward" in name.base
    types = [size for size in map(type_bytes, name.arguments) if size]
    first = 24 if backward else 16
    if name.base.startswith("softmax_warp"):
        batch, width = _scalar(kernel, first, "i"), _scalar(kernel, first + 8, "i")
        elements = batch * width if batch and width else 0
    else:
        width = _scalar(kernel, first, "q") or _scalar(kernel, first, "i")
        elements = kernel.blocks * width if width else 0
    if not 0 < elements < 1 << 44 or not types:
        return None
    return Traffic(
        float(elements) * types[0] * (3 if backward else 2) * passes(name), elements, family(name)
    )


def passes(name: KernelName) -> float:
    """How many times a kernel moves its operator's operands; 1.0 for most kernels."""
    if name.base.startswith("GammaBetaBackward"):
        # Another kernel writes the gradient of the input, a third of what the operator moves.
        return 2 / 3
    return {"cunn_SoftMaxForward": 4 / 2, "cunn_SoftMaxBackward": 4 / 3}.get(name.base, 1.0)


def gather(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`vectorized_gather_kernel<bytes per thread, index>`: embedding and index_select; one grid
    column per row (IndexKernel)."""
    width = name.integer(0)
    if width is None:
        return None
    moved = kernel.blocks * kernel.block_threads * width * 2
    return Traffic(moved, moved / 4, "gather")


def flash_helper(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`flash_bwd_dot_do_o_kernel<clear, traits>` reads dO and O and clears the fp32 accumulator.
    `flash_bwd_convert_dq_kernel<traits>` converts the fp32 accumulator to the result. The traits are
    `<head size, rows per block, ...>`."""
    found = re.search(r"Flash_bwd_kernel_traits<(\d+), (\d+),", name.text)
    if found is None:
        return None
    elements = kernel.blocks * int(found[1]) * int(found[2])
    clears = bool(name.arguments) and name.arguments[0] == "true"
    size = 2 + 2 + 4 * clears if "dot_do_o" in name.base else 4 + 2
    return Traffic(float(elements) * size, elements, "attention_helper")


def random_numbers(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`distribution_elementwise_grid_stride_kernel<acc, unroll, ..., *_and_transform<T, ...>>(int64
    numel, ...)`: only writes."""
    found = re.search(r"_and_transform<([\w:]+)", name.text)
    size = type_bytes(found[1]) if found else None
    elements = _scalar(kernel, 0, "q")
    if not size or not elements or not 0 < elements < 1 << 44:
        return None
    return Traffic(float(elements) * size, elements, "random")


def dropout(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`fused_dropout_kernel*<T, acc, index, ...>(TensorInfo in, out, mask, index total, ...)`: one
    byte of mask per element."""
    if len(name.arguments) < 3:
        return None
    size, wide = type_bytes(name.arguments[0]), type_bytes(name.arguments[2]) == 8
    # The offset of `total`: three TensorInfo, whose size depends on the index type.
    elements = _scalar(kernel, 3 * 416 if wide else 3 * 216, "q" if wide else "i")
    if not size or not elements or not 0 < elements < 1 << 44:
        return None
    return Traffic(elements * (2.0 * size + 1), elements, "random")


def indexed(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`_scatter_gather_elementwise_kernel<threads, per_thread, f>` and
    `index_elementwise_kernel<...>`: per element an index of 8 bytes, a read and a write."""
    threads, per_thread = name.integer(0), name.integer(1)
    found = re.search(r"OpaqueType<(\d+)", name.text)
    if not threads or not per_thread:
        return None
    elements = kernel.blocks * threads * per_thread
    size = int(found[1]) if found else 4
    return Traffic(elements * (8.0 + 2 * size), elements, "indexed")


def loss(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`nll_loss_*_reduce_cuda_kernel_2d(...)`: one block picks a number per row; each thread takes
    one row at a time. The count is `int64 nframe` at offset 48 forward, `int nframe` at 44 backward
    (Loss.cu). `elements` counts the loop's iterations."""
    rows = _scalar(kernel, 48, "q") if "forward" in name.base else _scalar(kernel, 44, "i")
    if not rows or not 0 < rows < 1 << 32:
        return None
    return Traffic(16.0 * rows, rows / kernel.block_threads * kernel.blocks, "loss")


def reduction(kernel: Kernel, name: KernelName) -> Traffic | None:
    """`reduce_kernel<threads, outputs, ReduceOp<T, ...>>`: the sizes come from ReduceConfig in the
    parameters (Reduce.cuh). Its ints are element_size, num_inputs, num_outputs, ..., block_width (the
    11th), block_height, num_threads."""
    form = struct.Struct("<14i")
    for at in range(0, len(kernel.parameters) - form.size + 1, 4):
        config = form.unpack_from(kernel.parameters, at)
        threads = kernel.bx, kernel.by, kernel.bx * kernel.by
        if config[0] in (1, 2, 4, 8, 16) and config[11:] == threads and min(config[1:3]) > 0:
            inputs = config[1] * config[2]
            return Traffic(inputs * config[0] + config[2] * config[0], inputs, "reduce")
    return None


READERS: dict[str, Callable[[Kernel, KernelName], Traffic | None]] = {
    "vectorized_elementwise_kernel": vectorized,
    "unrolled_elementwise_kernel": unrolled,
    "elementwise_kernel": strided,
    OVER_LISTS: foreach,
    "chunk_cat_cuda_kernel": chunk_concatenate,
    "split_with_sizes_copy_out_contiguous_no_cast_kernel": split_copy,
    "vectorized_layer_norm_kernel": layer_norm,
    "layer_norm_grad_input_kernel_vectorized": layer_norm,
    "layer_norm_grad_input_kernel": layer_norm,
    "vectorized_gather_kernel": gather,
    "reduce_kernel": reduction,
    "nll_loss_forward_reduce_cuda_kernel_2d": loss,
    "nll_loss_backward_reduce_cuda_kernel_2d": loss,
    "flash_bwd_dot_do_o_kernel": flash_helper,
    "flash_bwd_convert_dq_kernel": flash_helper,
    "distribution_elementwise_grid_stride_kernel": random_numbers,
    "_scatter_gather_elementwise_kernel": indexed,
    "index_elementwise_kernel": indexed,
}
PREFIXES = (
    ("CatArrayBatchedCopy", concatenate),
    ("cunn_SoftMax", softmax),
    ("softmax_warp", softmax),
    ("GammaBetaBackward", norm_weight),
    ("fused_dropout_kernel", dropout),
)
# Families of kernels whose volume only the framework's context gives.
CONTEXT_FAMILIES = (
    ("reduce_kernel", "reduce"),
    ("SoftMaxForwardReg", "softmax_registers"),
    ("Smem", "softmax_shared"),
    ("SoftMax", "softmax"),
    ("warp_backward", "softmax_warp_backward"),
    ("softmax", "softmax_warp"),
    ("layer_norm_grad", "norm_backward"),
    ("layer_norm", "norm"),
    ("GammaBeta", "norm_weight"),
    ("Cat", "concatenate"),
    ("distribution", "random"),
    ("dropout", "random"),
    ("gather", "gather"),
    ("index", "gather"),
    ("split_with_sizes", "split_copy"),
)


def traffic(kernel: Kernel, name: KernelName) -> Traffic | None:
    """What a launch moves, or None when neither name nor parameters give it."""
    reader = READERS.get(name.base)
    if reader is None:
        reader = next((r for prefix, r in PREFIXES if name.base.startswith(prefix)), None)
    found = reader(kernel, name) if reader else None
    return found if found is not None and found.bytes > 0 else None


def element_bytes(name: KernelName) -> int:
    """Bytes of the first type among a kernel's template arguments; 4 when they name no type."""
    return next((size for size in map(type_bytes, name.arguments) if size), 4)


def family(name: KernelName) -> str:
    """The family whose rates apply to a kernel of which only the volume is known."""
    return next((family for part, family in CONTEXT_FAMILIES if part in name.base), "other")
