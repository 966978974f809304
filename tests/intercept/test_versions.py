"""Why it exists: one library stands in for the runtimes of CUDA 12 and 13. A program must get the
functions and the layouts of the major that it was linked against, whatever else is installed. A
library made here takes the runtime's place, with its soname and its symbol version, so that both
majors are tested beside any torch."""

import re
import struct
import subprocess
from pathlib import Path

import pytest

SITE = Path(pytest.__file__).parents[1]
HERE = Path(__file__).resolve().parent
NEWEST = {12: 12080, 13: 13020}
FUNCTIONS = """cudaRuntimeGetVersion cudaDriverGetVersion cudaGetDriverEntryPoint
cudaPointerGetAttributes cudaMalloc cudaMemsetAsync cudaStreamCreateWithFlags cudaStreamBeginCapture
cudaStreamEndCapture cudaGetDeviceProperties cudaGetDeviceProperties_v2 cudaGraphGetEdges
cudaGraphGetEdges_v2 cudaGraphNodeGetDependencies cudaGraphNodeGetDependencies_v2
cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v2 cudaStreamGetCaptureInfo_v3""".split()


@pytest.fixture(scope="module")
def table(root):
    """major -> {bytes, uuid, total, members: {name: [(offset, bytes, attribute)]}, pointer}, from
    the generated header."""
    text = (root / "libintercept" / "simulated" / "cuda" / "versions.gen.h").read_text()
    found = {}
    for major, size, at_uuid, at_total in re.findall(
        r"layout_(\d+) = \{(\d+), (\d+), (\d+),", text
    ):
        members = {}
        rows = re.search(rf"properties_{major}\[\] = \{{(.*?)\n\}};", text, re.S)[1]
        for offset, size_of, attribute, name in re.findall(
            r"\{(\d+), (\d+), (\d+)\}, /\* (\w+) \*/", rows
        ):
            members.setdefault(name, []).append((int(offset), int(size_of), int(attribute)))
        found[int(major)] = {
            "bytes": int(size),
            "uuid": int(at_uuid),
            "total": int(at_total),
            "members": members,
            "pointer": int(re.search(rf"POINTER_ATTRIBUTES_{major} = (\d+)", text)[1]),
        }
    assert found.keys() == NEWEST.keys()
    return found


def build(folder, major, *, runtime=True):
    """Compiles c/versions.c as a program of a major; its runtime is a library that only has the
    names."""
    folder.mkdir(exist_ok=True)
    soname = f"libcudart.so.{major}"
    library = folder / soname
    (folder / "runtime.map").write_text(f"{soname} {{ global: cuda*; }};")
    (folder / "runtime.c").write_text(
        "\n".join(f"int {name}() {{ return -1; }}" for name in FUNCTIONS[1:])
        + f"\nint {FUNCTIONS[0]}(int *version) {{ return *version = {NEWEST[major]}, 0; }}\n"
    )
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, folder / "runtime.c", f"-Wl,-soname,{soname}"]
        + [f"-Wl,--version-script={folder / 'runtime.map'}"],
        check=True,
    )
    target = folder / "versions"
    subprocess.run(
        ["cc", "-std=gnu11", "-Wall", "-Wextra", f"-DMAJOR={major}", f'-DRUNTIME="{library}"']
        + ["-o", target, HERE / "c" / "versions.c", library, f"-Wl,-rpath,{folder}", "-ldl"],
        check=True,
    )
    if not runtime:
        library.unlink()
    return target


@pytest.fixture(params=sorted(NEWEST))
def major(request):
    """Each major."""
    return request.param


def test_a_program_gets_the_functions_of_its_major(
    tmp_path, environment, hub, condition, major, table, run_program
):
    done = subprocess.run(
        [build(tmp_path / "program", major), condition],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "libcudart" not in done.stderr
    seen = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert int(seen["runtime"]) == NEWEST[major]
    assert int(seen["driver"]) >= 13000, "a driver runs the programs of older majors"
    assert seen["entry"] == "0 1", "12.3 and later mean the third form"

    layout = table[major]
    assert seen["properties_rc"] == "0" and int(seen["properties_bytes"]) == layout["bytes"]
    data = bytes.fromhex(seen["properties"])
    attributes = run_program("devices").values
    assert data[:256].rstrip(b"\0").decode() == attributes["name"]
    assert data[layout["uuid"] :][:16].hex() == attributes["uuid.0"]
    assert struct.unpack_from("Q", data, layout["total"])[0] == int(attributes["memory"])
    for name, places in layout["members"].items():
        for offset, size, attribute in places:
            value = int.from_bytes(data[offset : offset + size], "little", signed=size == 4)
            assert value == int(attributes[f"attribute.{attribute}"]), name

    assert int(seen["pointer_bytes"]) == layout["pointer"], "no byte beyond the caller's struct"
    assert (seen["pointer_rc"], seen["pointer_type"]) == ("0", "2")
    assert seen["info"] == "0 1 1 1"
    assert (seen["edges"], seen["dependencies"]) == ("0 1", "0 1 1")
    if major == 12:
        assert (seen["info_v1"], seen["info_v2"]) == ("0 1 1", "0 1 1")
        assert (seen["edges_v2"], seen["dependencies_v2"]) == ("0 1", "0 1")


def test_a_program_without_a_runtime_gets_one_line(run_program):
    done = run_program("devices")
    assert done.stderr.count("libcudart.so.13") == 1 and "CUDA 13.0" in done.stderr


def test_both_majors_in_one_process_keep_apart(tmp_path, run_python):
    programs = {major: build(tmp_path / str(major), major) for major in NEWEST}
    done = run_python(
        """
import ctypes, sys
for path in sys.argv[1:]:
    library, version = ctypes.CDLL(path), ctypes.c_int()
    assert library.cudaRuntimeGetVersion(ctypes.byref(version)) == 0
    print(version.value)
""",
        *(programs[major].parent / f"libcudart.so.{major}" for major in NEWEST),
    )
    assert done.stdout.split() == ["12080", "13020"] and done.stderr == ""


def test_the_tables_equal_the_installed_header(root, tmp_path, table):
    """The oracle is a compiler that reads NVIDIA's header."""
    headers = [*(SITE / "nvidia").glob("*/include/driver_types.h")]
    # the wheels lack this part of the headers
    crt = SITE / "triton" / "backends" / "nvidia" / "include"
    if not headers or not crt.exists():
        pytest.skip("no CUDA headers are installed beside torch")
    version = (headers[0].parent / "cuda_runtime_api.h").read_text()
    major = int(re.search(r"#define\s+CUDART_VERSION\s+(\d+)", version)[1]) // 1000
    layout = table[major]
    checks = [
        (f"offsetof(struct cudaDeviceProp, {name}) + {i} * {size}", offset)
        for name, places in layout["members"].items()
        for i, (offset, size, _) in enumerate(places)
    ]
    checks += [
        (f"sizeof(((struct cudaDeviceProp *)0)->{name})", sum(size for _, size, _ in places))
        for name, places in layout["members"].items()
    ]
    checks += [
        ("sizeof(struct cudaDeviceProp)", layout["bytes"]),
        ("offsetof(struct cudaDeviceProp, uuid)", layout["uuid"]),
        ("offsetof(struct cudaDeviceProp, totalGlobalMem)", layout["total"]),
        ("sizeof(struct cudaPointerAttributes)", layout["pointer"]),
    ]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <driver_types.h>\n"
        + "".join(f'_Static_assert({what} == {value}, "{what}");\n' for what, value in checks)
    )
    includes = [f"-I{headers[0].parent}", f"-I{crt}"]
    subprocess.run(
        ["cc", "-std=gnu11", *includes, "-c", source, "-o", tmp_path / "layout.o"], check=True
    )


def test_the_drivers_forms_equal_the_installed_header(root):
    """Each form that the installed cudaTypedefs.h knows is in the table, in its place."""
    headers = [*(SITE / "nvidia").glob("*/include/cudaTypedefs.h")]
    if not headers:
        pytest.skip("no CUDA headers are installed beside torch")
    text = (root / "libintercept" / "simulated" / "cuda" / "versions.gen.h").read_text()
    listed = {
        name: [*map(int, versions.split(", "))]
        for name, versions in re.findall(r'\{"(\w+)", \{([\d, ]+)\}\}', text)
    }
    assert [*listed] == sorted(listed), "it is searched by bisection"
    forms = {}
    for name, version in re.findall(r"\*PFN_(cu\w+)_v(\d+)\)", headers[0].read_text()):
        forms.setdefault(name, set()).add(int(version))
    for name, versions in forms.items():
        if len(versions) > 1:
            assert sorted(versions) == listed[name][: len(versions)], name


def test_a_driver_function_is_the_form_of_the_version_asked_for(run_python):
    run_python(
        """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
def form(name, version):
    found = ctypes.c_void_p()
    error = driver.cuGetProcAddress_v2(name, ctypes.byref(found), version, ctypes.c_uint64(0), None)
    return found.value if error == 0 else error
def own(name):
    return ctypes.cast(getattr(driver, name), ctypes.c_void_p).value
for name, version, symbol in [
    (b"cuStreamGetCaptureInfo", 10010, "cuStreamGetCaptureInfo"),
    (b"cuStreamGetCaptureInfo", 12020, "cuStreamGetCaptureInfo_v2"),
    (b"cuStreamGetCaptureInfo", 13000, "cuStreamGetCaptureInfo_v3"),
    (b"cuCtxSynchronize", 12080, "cuCtxSynchronize"),
    (b"cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"),
    (b"cuCtxCreate", 12080, "cuCtxCreate_v4"),
    (b"cuCtxCreate", 11040, "cuCtxCreate_v3"),
    (b"cuMemAlloc", 12000, "cuMemAlloc_v2"),
    (b"cuMemCreate", 12000, "cuMemCreate"),
    (b"cuMulticastBindMem", 13020, "cuMulticastBindMem"),
]:
    assert form(name, version) == own(symbol), (name, version)
assert form(b"cuNoSuchFunction", 13000) == form(b"cuStreamGetCaptureInfo", 9000) == 500
"""
    )


@pytest.mark.parametrize("major", sorted(NEWEST))
def test_cublas_has_the_version_of_the_library_that_is_loaded(tmp_path, run_python, major):
    source = tmp_path / "blas.c"
    source.write_text(f"unsigned long cublasLtGetVersion(void) {{ return {major}0304; }}\n")
    library = tmp_path / f"libcublasLt.so.{major}"
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source]
    subprocess.run(command, check=True)
    done = run_python(
        """
import ctypes, sys
ours, version = ctypes.CDLL(None), ctypes.c_int()
if sys.argv[1:]: ctypes.CDLL(sys.argv[1])
assert ours.cublasGetVersion_v2(None, ctypes.byref(version)) == 0
print(version.value, ours.cublasLtGetVersion())
""",
        library,
    )
    assert done.stdout.split() == [f"{major}0304"] * 2
