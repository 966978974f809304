"""Kernel names, demangled when the C++ library is there, and parsed as far as the estimators need.

Why it exists: the names of PyTorch's kernels say what they read and write
(`vectorized_elementwise_kernel<8, CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>>` moves
three tensors of bf16). An odd name is never an error here: parts that cannot be read are missing
from the result, and the estimators then use fewer facts.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import lru_cache

TYPE_BYTES = {
    "double": 8,
    "float": 4,
    "long": 8,
    "unsigned long": 8,
    "long long": 8,
    "unsigned long long": 8,
    "int": 4,
    "unsigned int": 4,
    "short": 2,
    "unsigned short": 2,
    "char": 1,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "__half": 2,
    "__nv_bfloat16": 2,
    "cutlass::bfloat16_t": 2,
    "cutlass::half_t": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::complex<c10::Half>": 4,
}
_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1")
# What differs between the names of one function in two releases of PyTorch: a lambda's number, the
# version in CUB's and Thrust's namespaces, template arguments that a later release added (their
# `false` is the earlier behaviour), and functions that have new names.
_LAMBDA_NUMBER = re.compile(r"#\d+\}")
_NAMESPACE_VERSION = re.compile(r"\b(THRUST|CUB)_\d+_\w*|\b_V_\d+_SM_\w*")
_ADDED_ARGUMENTS = re.compile(r"(,false)+>$")
_NEW_NAMES = (
    ("converting_copy_kernel_cuda<float,c10::BFloat16>(", "bfloat16_copy_kernel_cuda("),
    ("converting_copy_kernel_cuda<float,c10::Half>(", "float16_copy_kernel_cuda("),
)
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?l?>")


@lru_cache(maxsize=1)
def _demangler():
    """`__cxa_demangle` (Itanium C++ ABI) and `free`, or None on a machine without a C++ library."""
    for library in _LIBRARIES:
        try:
            function = ctypes.CDLL(library).__cxa_demangle
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        function.argtypes = [
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_int),
        ]
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        return function, free
    return None


def demangle(name: str) -> str:
    """The C++ name behind a mangled one. Returns `name` itself when it is not mangled or cannot be
    demangled."""
    tools = _demangler() if name.startswith("_Z") else None
    if tools is None or "\0" in name:
        return name
    function, free = tools
    status = ctypes.c_int()
    result = function(name.encode("utf-8", "replace"), None, None, ctypes.byref(status))
    if not result:
        return name
    try:
        return ctypes.string_at(result).decode("utf-8", "replace") if status.value == 0 else name
    finally:
        free(result)


def split_arguments(text: str) -> list[str]:
    """Splits at commas outside all brackets.

    >>> split_arguments("8, std::array<char*, 3ul>, f(int, int)")
    ['8', 'std::array<char*, 3ul>', 'f(int, int)']
    """
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char in "<([{":
            depth += 1
        elif char in ")]}" or (char == ">" and text[at - 1 : at] != "-"):
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _match(text: str, opening: int) -> int:
    """Index of the bracket that closes the one at `opening`, or -1."""
    depth = 0
    for at in range(opening, len(text)):
        if text[at] in "<([{":
            depth += 1
        elif text[at] in ")]}" or (text[at] == ">" and text[at - 1 : at] != "-"):
            depth -= 1
            if depth == 0:
                return at
    return -1


@dataclass(frozen=True, slots=True)
class KernelName:
    """`base`: the function's last identifier; `arguments`: its template arguments as text; `text`:
    the whole name."""

    base: str
    arguments: tuple[str, ...]
    text: str

    def integer(self, index: int) -> int | None:
        """Template argument `index` as an integer; None when it is missing or not an integer."""
        if index >= len(self.arguments):
            return None
        match = re.fullmatch(r"(-?\d+)u?l?l?", self.arguments[index])
        return int(match[1]) if match else None


@lru_cache(maxsize=8192)
def parse(name: str) -> KernelName:
    """Parses a mangled or demangled kernel name; never fails."""
    text = demangle(name)
    head = text[5:] if text.startswith("void ") else text
    angle = -1
    for at, char in enumerate(head):
        if char == "<":
            angle = at
            break
        if char == "(" and not head.startswith("(anonymous namespace)", at):
            head = head[:at]
            break
    if angle < 0:
        return KernelName(_last_identifier(head), (), text)
    end = _match(head, angle)
    if end < 0:
        return KernelName(_last_identifier(head[:angle]), (), text)
    return KernelName(
        _last_identifier(head[:angle]), tuple(split_arguments(head[angle + 1 : end])), text
    )


@lru_cache(maxsize=8192)
def lasting(name: str) -> str:
    """A kernel's name without what differs between releases of PyTorch and CUDA: two kernels with
    equal results are one function, compiled from two releases. Parameters are left out."""
    text = demangle(name).removeprefix("void ")
    opening = text.find("<")
    end = _match(text, opening) if opening >= 0 else -1
    whole = (text[: end + 1] if end >= 0 else text.partition("(")[0]).replace(" ", "")
    for pattern, by in ((_LAMBDA_NUMBER, "}"), (_NAMESPACE_VERSION, ""), (_ADDED_ARGUMENTS, ">")):
        whole = pattern.sub(by, whole)
    for new, old in _NEW_NAMES:
        whole = whole.replace(new, old)
    return whole


def _last_identifier(text: str) -> str:
    text = text.strip().rpartition("::")[2]
    if text.startswith("_Z"):
        # Not demangled. The longest identifier with a length prefix is a fair guess.
        found = [
            text[m.end() : m.end() + int(m[0])]
            for m in re.finditer(r"\d+", text)
            if 0 < int(m[0]) <= len(text) - m.end()
        ]
        return max((f for f in found if re.fullmatch(r"[A-Za-z_]\w*", f)), key=len, default=text)
    return text.rpartition(" ")[2]


def type_bytes(text: str) -> int | None:
    """Size of a type by its name, None when unknown. Pointers count 8."""
    text = text.removesuffix(" const&").removesuffix(" const").removesuffix("&").strip()
    opaque = _OPAQUE.search(text)
    if opaque and text.endswith(">"):
        return int(opaque[1])
    return 8 if text.endswith("*") else TYPE_BYTES.get(text)


def template_arguments(text: str, name: str) -> list[str]:
    """Template arguments of the first `name<...>` in a text, empty when there is none."""
    at = text.find(name + "<")
    if at < 0:
        return []
    end = _match(text, at + len(name))
    return split_arguments(text[at + len(name) + 1 : end]) if end > 0 else []


def lambda_arguments(text: str) -> list[str]:
    """Argument types of the last lambda that has any, e.g. `{lambda(float, float)#1}`; empty when
    there is none."""
    for at in reversed([m.end() - 1 for m in re.finditer(r"\{lambda\(", text)]):
        end = _match(text, at)
        if end > at + 1:
            return split_arguments(text[at + 1 : end])
    return []
