"""Writes libintercept/simulated/cuda/versions.gen.h: what differs between the CUDA versions that
PyTorch's wheels bring, as far as the interceptor must know it.

Why it exists: one interceptor stands in for the runtime of CUDA 12 and of CUDA 13, whose structs
differ, and for a driver whose functions have several forms under one name. The tables come from the
headers that the wheels bring (driver_types.h, cudaTypedefs.h), read by libclang. Numbers and names
are facts; nothing else of those files is taken.

    pip install libclang
    tools/cuda_versions.py --site-packages DIR [--site-packages DIR ...] [--check] [--differences]

Each DIR holds the wheels of one version of PyTorch. `--check` writes nothing and exits 1 when the
file differs from what would be written. `--differences` prints which functions, structs and
enumerators of the CUDA libraries differ between the first DIR and each of the others.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

from generated import ROOT, settle

TARGET = ROOT / "libintercept" / "simulated" / "cuda" / "versions.gen.h"
HEADERS = """cuda_runtime_api.h cuda.h cublas_v2.h cublasLt.h cudnn.h nccl.h cufft.h cufftXt.h
cusolver_common.h cusolverDn.h cusolverSp.h cusolverRf.h cusparse.h nvrtc.h cufile.h cupti.h
curand.h""".split()
# Parts of the CUDA headers that no wheel of PyTorch's brings, and that only compilers need.
MISSING = {
    "crt/host_defines.h": """#define __host__
#define __device__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
""",
    "cuda_fp16.h": "typedef struct { unsigned short x; } __half;",
    "cuda_bf16.h": "typedef struct { unsigned short x; } __nv_bfloat16;",
    "cuda_fp8.h": "",
    "cuda_runtime.h": "#include <cuda_runtime_api.h>",
}
# The CUdevice_attribute that each member of cudaDeviceProp shows (documentation of
# cudaGetDeviceProperties); members that are an array of three or two show consecutive ones.
ATTRIBUTES = {
    "sharedMemPerBlock": 8,
    "regsPerBlock": 12,
    "warpSize": 10,
    "memPitch": 11,
    "maxThreadsPerBlock": 1,
    "maxThreadsDim": 2,
    "maxGridSize": 5,
    "clockRate": 13,
    "totalConstMem": 9,
    "major": 75,
    "minor": 76,
    "textureAlignment": 14,
    "texturePitchAlignment": 51,
    "deviceOverlap": 15,
    "multiProcessorCount": 16,
    "kernelExecTimeoutEnabled": 17,
    "integrated": 18,
    "canMapHostMemory": 19,
    "computeMode": 20,
    "maxTexture1D": 21,
    "maxTexture1DMipmap": 77,
    "maxTexture1DLinear": 69,
    "maxTexture2D": 22,
    "maxTexture2DMipmap": 73,
    "maxTexture2DLinear": 70,
    "maxTexture2DGather": 45,
    "maxTexture3D": 24,
    "maxTexture3DAlt": 47,
    "maxTextureCubemap": 52,
    "maxTexture1DLayered": 42,
    "maxTexture2DLayered": 27,
    "maxTextureCubemapLayered": 53,
    "maxSurface1D": 55,
    "maxSurface2D": 56,
    "maxSurface3D": 58,
    "maxSurface1DLayered": 61,
    "maxSurface2DLayered": 63,
    "maxSurfaceCubemap": 66,
    "maxSurfaceCubemapLayered": 67,
    "surfaceAlignment": 30,
    "concurrentKernels": 31,
    "ECCEnabled": 32,
    "pciBusID": 33,
    "pciDeviceID": 34,
    "pciDomainID": 50,
    "tccDriver": 35,
    "asyncEngineCount": 40,
    "unifiedAddressing": 41,
    "memoryClockRate": 36,
    "memoryBusWidth": 37,
    "l2CacheSize": 38,
    "persistingL2CacheMaxSize": 108,
    "maxThreadsPerMultiProcessor": 39,
    "streamPrioritiesSupported": 78,
    "globalL1CacheSupported": 79,
    "localL1CacheSupported": 80,
    "sharedMemPerMultiprocessor": 81,
    "regsPerMultiprocessor": 82,
    "managedMemory": 83,
    "isMultiGpuBoard": 84,
    "multiGpuBoardGroupID": 85,
    "hostNativeAtomicSupported": 86,
    "singleToDoublePrecisionPerfRatio": 87,
    "pageableMemoryAccess": 88,
    "concurrentManagedAccess": 89,
    "computePreemptionSupported": 90,
    "canUseHostPointerForRegisteredMem": 91,
    "cooperativeLaunch": 95,
    "cooperativeMultiDeviceLaunch": 96,
    "sharedMemPerBlockOptin": 97,
    "pageableMemoryAccessUsesHostPageTables": 100,
    "directManagedMemAccessFromHost": 101,
    "maxBlocksPerMultiProcessor": 106,
    "accessPolicyMaxWindowSize": 109,
    "reservedSharedMemPerBlock": 111,
    "hostRegisterSupported": 99,
    "sparseCudaArraySupported": 112,
    "hostRegisterReadOnlySupported": 113,
    "timelineSemaphoreInteropSupported": 114,
    "memoryPoolsSupported": 115,
    "gpuDirectRDMASupported": 116,
    "gpuDirectRDMAFlushWritesOptions": 117,
    "gpuDirectRDMAWritesOrdering": 118,
    "memoryPoolSupportedHandleTypes": 119,
    "deferredMappingCudaArraySupported": 121,
    "ipcEventSupported": 125,
    "clusterLaunch": 120,
    "unifiedFunctionPointers": 129,
    "deviceNumaConfig": 130,
    "deviceNumaId": 131,
    "mpsEnabled": 133,
    "hostNumaId": 134,
    "gpuPciDeviceID": 139,
    "gpuPciSubsystemID": 140,
    "hostNumaMultinodeIpcSupported": 143,
}
# These are not attributes. The luid belongs to Windows, and is zero here.
OTHERS = {"name", "uuid", "luid", "luidDeviceNodeMask", "totalGlobalMem", "reserved"}


def clang():
    """The module clang.cindex. Exits with one line when it is not installed."""
    try:
        import clang.cindex
    except ImportError:
        sys.exit("cuda_versions.py: libclang reads the headers: pip install libclang")
    return clang.cindex


class Headers:
    """The CUDA headers of one site-packages, parsed."""

    def __init__(self, packages):
        nvidia = packages / "nvidia"
        self.folders = sorted({*nvidia.glob("*/include")})
        if not any((folder / "cuda.h").exists() for folder in self.folders):
            sys.exit(f"cuda_versions.py: no CUDA headers in {nvidia}")
        cindex = clang()
        # the compiler's own headers, of which libclang has none
        own = sorted(Path("/usr/lib/gcc").glob("*/*/include"))[-1:]
        present = [name for name in HEADERS if any((f / name).exists() for f in self.folders)]
        with tempfile.TemporaryDirectory() as folder:
            for name, text in MISSING.items():
                (Path(folder) / name).parent.mkdir(exist_ok=True)
                (Path(folder) / name).write_text("#pragma once\n" + text)
            source = Path(folder) / "all.c"
            source.write_text(
                "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n"
                + "".join(f"#include <{name}>\n" for name in present)
            )
            includes = [f"-I{path}" for path in (folder, *self.folders, *own)]
            unit = cindex.Index.create().parse(source, ["-std=gnu11", *includes])
        errors = [str(one) for one in unit.diagnostics if one.severity >= cindex.Diagnostic.Error]
        if errors:
            sys.exit("\n".join(["cuda_versions.py: the headers cannot be read:", *errors]))
        self.structs, self.functions, self.enumerators = {}, {}, {}
        self._collect(unit.cursor, cindex)
        self.version = self._constant("CUDART_VERSION")
        self.major = self.version // 1000
        self.name = f"{self.major}.{self.version % 1000 // 10}"

    def _constant(self, name):
        for folder in self.folders:
            header = folder / "cuda_runtime_api.h"
            if header.exists():
                return int(re.search(rf"#define\s+{name}\s+(\d+)", header.read_text())[1])
        raise SystemExit("cuda_versions.py: no cuda_runtime_api.h")

    def _collect(self, cursor, cindex):
        kinds = cindex.CursorKind
        for node in cursor.get_children():
            if not node.location.file or "/nvidia/" not in node.location.file.name:
                continue
            if node.kind == kinds.FUNCTION_DECL and node.linkage == cindex.LinkageKind.EXTERNAL:
                self.functions[node.spelling] = [
                    (one.spelling, one.type) for one in node.get_arguments()
                ] + [("result", node.result_type)]
            elif node.kind in (kinds.STRUCT_DECL, kinds.UNION_DECL) and node.is_definition():
                self.structs[node.spelling] = node.type
            elif node.kind == kinds.ENUM_DECL:
                for one in node.get_children():
                    if one.kind == kinds.ENUM_CONSTANT_DECL:
                        self.enumerators[one.spelling] = one.enum_value

    def typedefs(self):
        """driver function -> the versions of CUDA that brought its forms, ascending: name, name_v2,
        name_v3... They are in the names of the pointer types. Forms for per-thread default streams
        (_ptds, _ptsz) are other functions."""
        found = {}
        for folder in self.folders:
            path = folder / "cudaTypedefs.h"
            if path.exists():
                for name, version in re.findall(r"\*PFN_(cu\w+)_v(\d+)\)", path.read_text()):
                    found.setdefault(name, set()).add(int(version))
        return {name: sorted(versions) for name, versions in found.items()}


def shape(ctype, cindex, inside=()):
    """The ABI of a type as text: structs by the offsets and the shapes of their members."""
    ctype = ctype.get_canonical()
    kinds = cindex.TypeKind
    if ctype.kind == kinds.POINTER:
        target = ctype.get_pointee().get_canonical()
        if target.kind == kinds.FUNCTIONPROTO:
            parameters = ", ".join(shape(one, cindex, inside) for one in target.argument_types())
            return f"function({parameters})"
        return f"{shape(target, cindex, inside)}*"
    if ctype.kind == kinds.CONSTANTARRAY:
        return f"{shape(ctype.element_type, cindex, inside)}[{ctype.element_count}]"
    if ctype.kind == kinds.ENUM:
        return "enum"
    if ctype.kind == kinds.RECORD:
        name = ctype.get_declaration().get_usr()
        if ctype.get_size() < 0:
            return "opaque"
        if name in inside:
            return "itself"
        members = "; ".join(
            f"{one.spelling or 'unnamed'} at {one.get_field_offsetof() // 8}: "
            f"{shape(one.type, cindex, (*inside, name))}"
            for one in ctype.get_fields()
        )
        return f"{{{ctype.get_size()} bytes; {members}}}"
    return re.sub(r"\b(const|volatile) ", "", ctype.spelling)


def members(headers, struct):
    """(name, offset, bytes of an element, elements) of each member of a struct."""
    cindex = clang()
    for one in headers.structs[struct].get_fields():
        ctype = one.type.get_canonical()
        many = ctype.kind == cindex.TypeKind.CONSTANTARRAY
        element = ctype.element_type if many else ctype
        yield (
            one.spelling,
            one.get_field_offsetof() // 8,
            element.get_size(),
            ctype.element_count if many else 1,
        )


def properties(headers):
    """The lines of one major's table of cudaDeviceProp."""
    lines = []
    for name, offset, size, count in members(headers, "cudaDeviceProp"):
        if name in OTHERS:
            continue
        if name not in ATTRIBUTES:
            sys.exit(f"cuda_versions.py: which attribute is cudaDeviceProp.{name}? (ATTRIBUTES)")
        lines += [
            f"{{{offset + i * size}, {size}, {ATTRIBUTES[name] + i}}}, /* {name} */"
            for i in range(count)
        ]
    return lines


def one_layout(all_headers, struct):
    """The headers of each major; the struct must be the same in all versions of a major."""
    cindex, majors = clang(), {}
    for headers in all_headers:
        first = majors.setdefault(headers.major, headers)
        ours, theirs = ([*members(one, struct)] for one in (first, headers))
        if struct == "cudaDeviceProp" and ours != theirs:
            sys.exit(f"cuda_versions.py: {struct} differs between {first.name} and {headers.name}")
        if shape(first.structs[struct], cindex) != shape(headers.structs[struct], cindex):
            sys.exit(f"cuda_versions.py: {struct} differs between {first.name} and {headers.name}")
    return dict(sorted(majors.items()))


def render(all_headers):
    """The text of the generated file."""
    names = sorted({one.name for one in all_headers}, key=lambda name: [*map(int, name.split("."))])
    lines = [
        "/* generated by tools/cuda_versions.py, do not edit",
        f" * Source: driver_types.h and cudaTypedefs.h of CUDA {', '.join(names)} */",
        "/* clang-format off */",
    ]
    for major, headers in one_layout(all_headers, "cudaDeviceProp").items():
        offsets = {name: offset for name, offset, _, _ in members(headers, "cudaDeviceProp")}
        size = headers.structs["cudaDeviceProp"].get_size()
        lines += [
            f"static const struct ph_property properties_{major}[] = {{",
            *(f"    {line}" for line in properties(headers)),
            "};",
            f"static const struct ph_properties layout_{major} = {{{size}, {offsets['uuid']}, "
            f"{offsets['totalGlobalMem']}, properties_{major},",
            f"    sizeof properties_{major} / sizeof properties_{major}[0]}};",
        ]
    sizes = {
        major: headers.structs["cudaPointerAttributes"].get_size()
        for major, headers in one_layout(all_headers, "cudaPointerAttributes").items()
    }
    lines += [
        "enum { "
        + ", ".join(f"POINTER_ATTRIBUTES_{major} = {size}" for major, size in sizes.items())
        + " };"
    ]
    entries = {}
    for headers in all_headers:
        for name, versions in headers.typedefs().items():
            entries.setdefault(name, set()).update(versions)
    lines += ["static const struct ph_driver_entry driver_entries[] = {"]
    lines += [
        f'    {{"{name}", {{{", ".join(map(str, sorted(versions)))}}}}},'
        for name, versions in sorted(entries.items())
        if len(versions) > 1
    ]
    return "\n".join([*lines, "};", ""])


def places(ctype, cindex):
    """member -> (offset, shape) of a struct or union; unnamed members are left out."""
    return {
        one.spelling: (one.get_field_offsetof() // 8, shape(one.type, cindex))
        for one in ctype.get_fields()
        if one.spelling and "(" not in one.spelling
    }


def struct_difference(ours, theirs, cindex):
    """What changed in a struct, as text; empty when nothing did. Reserved bytes are not members."""
    parts = []
    if ours.get_size() != theirs.get_size():
        parts.append(f"{ours.get_size()} -> {theirs.get_size()} bytes")
    old, new = places(ours, cindex), places(theirs, cindex)
    for word, names in (
        ("gone", old.keys() - new.keys()),
        ("new", new.keys() - old.keys()),
        ("elsewhere", {n for n in old.keys() & new.keys() if old[n][0] != new[n][0]}),
    ):
        if names := sorted(name for name in names if "reserved" not in name):
            parts.append(f"{word}: {', '.join(names)}")
    return "; ".join(parts)


def differences(first, second):
    """Yields a line for each function, struct and enumerator that differs between two versions, as
    far as both have it."""
    cindex = clang()
    for name in sorted(first.functions.keys() & second.functions.keys()):
        ours, theirs = first.functions[name], second.functions[name]
        kinds = [[kind_of(ctype) for _, ctype in one] for one in (ours, theirs)]
        if kinds[0] != kinds[1]:
            before, after = (", ".join(n for n, _ in one[:-1]) for one in (ours, theirs))
            yield f"{name}({before}) -> ({after})"
    for name in sorted(first.structs.keys() & second.structs.keys()):
        if name and "(" not in name:
            text = struct_difference(first.structs[name], second.structs[name], cindex)
            if text:
                yield f"{name}: {text}"
    for name in sorted(first.enumerators.keys() & second.enumerators.keys()):
        values = first.enumerators[name], second.enumerators[name]
        if values[0] != values[1]:
            yield f"{name}: {values[0]} -> {values[1]}"


def kind_of(ctype):
    """A parameter's type without the names of versions of one struct (CUdevice_v1)."""
    return re.sub(r"\b(const|struct|enum) |_st\b|_v\d+\b", "", ctype.get_canonical().spelling)


def main():
    """Writes, or with --check compares, the generated file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--site-packages",
        type=Path,
        action="append",
        required=True,
        help="where the CUDA wheels of one version of PyTorch are installed; repeat it",
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--differences", action="store_true", help="print what differs")
    options = parser.parse_args()
    all_headers = [Headers(path) for path in options.site_packages]
    if options.differences:
        for other in all_headers[1:]:
            print(f"== {all_headers[0].name} -> {other.name}")
            print(*differences(all_headers[0], other), sep="\n")
        return
    settle({TARGET: render(all_headers)}, options.check, "tools/cuda_versions.py")


if __name__ == "__main__":
    main()
