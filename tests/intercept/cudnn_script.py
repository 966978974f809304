"""Drives cuDNN's graph API through ctypes: the same calls on NVIDIA's library, with a described
GPU, and on ours.

Why it exists: NVIDIA's library answers for a GPU that is described to it without having one, so it
is the oracle for ours. Run as `python cudnn_script.py real|ours LIBRARY CASE`; prints one JSON
value. In `real` the device is described by the JSON in the environment variable DEVICE; `ours` gets
handles instead, as PyTorch does it.
"""

import ctypes as C
import json
import os
import sys

WHO, LIBRARY, CASE = sys.argv[1:4]
CUDNN = C.CDLL(LIBRARY)
ELEMENT = {1: C.c_int32, 2: C.c_bool, 3: C.c_int64, 4: C.c_float, 5: C.c_double}


def create(kind):
    """An empty descriptor."""
    descriptor = C.c_void_p()
    assert CUDNN.cudnnBackendCreateDescriptor(kind, C.byref(descriptor)) == 0
    return descriptor


def set_values(descriptor, name, kind, *values):
    """cudnnBackendSetAttribute; descriptors are kind 15, handles kind 0."""
    if kind in (0, 15, 6):
        array = (C.c_void_p * len(values))(*[v.value for v in values])
    else:
        element = ELEMENT.get(kind, C.c_int32)
        array = (element * len(values))(*values)
    return CUDNN.cudnnBackendSetAttribute(descriptor, name, kind, C.c_int64(len(values)), array)


def get(descriptor, name, kind, requested, into):
    """(status, count) of cudnnBackendGetAttribute."""
    count = C.c_int64(-1)
    status = CUDNN.cudnnBackendGetAttribute(
        descriptor, name, kind, C.c_int64(requested), C.byref(count), into
    )
    return status, count.value


def get_int(descriptor, name, element=C.c_int64, kind=3):
    """One integer attribute as [status, value]."""
    value = element(-1)
    return [get(descriptor, name, kind, 1, C.byref(value))[0], value.value]


def finalize(descriptor):
    """cudnnBackendFinalize's status."""
    return CUDNN.cudnnBackendFinalize(descriptor)


class Device:
    """What a plan is for: a description (real) or a handle (ours)."""

    def __init__(self):
        if WHO == "real":
            text = os.environ["DEVICE"].encode()
            self.it = create(38)
            array = C.create_string_buffer(text, len(text))
            assert (
                CUDNN.cudnnBackendSetAttribute(self.it, 2702, 24, C.c_int64(len(text)), array) == 0
            )
            assert finalize(self.it) == 0
        else:
            self.it = C.c_void_p()
            assert CUDNN.cudnnCreate(C.byref(self.it)) == 0

    def give(self, descriptor, described, handled):
        """Sets the attribute that names the device."""
        if WHO == "real" and described is not None:
            assert set_values(descriptor, described, 15, self.it) == 0
        if WHO == "ours" and handled is not None:
            assert set_values(descriptor, handled, 0, self.it) == 0


def tensor(uid, dims, strides, kind=9):
    """A finalized tensor descriptor (bf16 unless told)."""
    made = create(17)
    for name, attribute, values in (
        (906, 3, [uid]),
        (901, 1, [kind]),
        (902, 3, dims),
        (903, 3, strides),
        (900, 3, [16]),
    ):
        assert set_values(made, name, attribute, *values) == 0
    assert finalize(made) == 0
    return made


def channels_last(n, c, h, w):
    return [h * w * c, 1, w * c, c]


def convolution(device, direction, n, cin, cout, kernel, stride, padding, size, kind=9):
    """A finalized operation graph with one convolution."""
    out = (size + 2 * padding - kernel) // stride + 1
    shapes = [(n, cin, size, size), (cout, cin, kernel, kernel), (n, cout, out, out)]
    x, w, y = (tensor(i + 1, s, channels_last(*s), kind) for i, s in enumerate(shapes))
    settings = create(1)
    for name, attribute, values in (
        (100, 1, [0]), (101, 7, [1]), (106, 3, [2]), (105, 3, [padding] * 2), (104, 3, [padding] * 2),
        (102, 3, [1, 1]), (103, 3, [stride] * 2),
    ):  # fmt: skip
        assert set_values(settings, name, attribute, *values) == 0
    assert finalize(settings) == 0
    descriptor_type, conv, xs, ws, ys, alpha = {
        "forward": (10, 702, 704, 703, 705, 700),
        "dgrad": (12, 708, 710, 709, 711, 706),
        "wgrad": (11, 714, 716, 715, 717, 712),
    }[direction]
    operation = create(descriptor_type)
    for name, child in ((conv, settings), (xs, x), (ws, w), (ys, y)):
        assert set_values(operation, name, 15, child) == 0
    assert set_values(operation, alpha, 4, 1.0) == set_values(operation, alpha + 1, 4, 0.0) == 0
    assert finalize(operation) == 0
    graph = create(15)
    assert set_values(graph, 801, 15, operation) == 0
    device.give(graph, None, 800)
    assert finalize(graph) == 0
    return graph


def engines(device, graph, mode, most=40):
    """[engine, notes, knobs, configuration's workspace, plan's status, plan's workspace] of each
    result of a heuristic."""
    heuristics = create(4)
    assert set_values(heuristics, 201, 15, graph) == set_values(heuristics, 200, 8, mode) == 0
    device.give(heuristics, 204, None)
    status = finalize(heuristics)
    if status:
        return status
    total = get(heuristics, 202, 15, 0, None)[1]
    configurations = [create(3) for _ in range(min(total, most))]
    array = (C.c_void_p * len(configurations))(*[c.value for c in configurations])
    got = get(heuristics, 202, 15, len(configurations), array)[1]
    found = []
    for configuration in configurations[:got]:
        engine = create(2)
        assert get(configuration, 300, 15, 1, (C.c_void_p * 1)(engine.value)) == (0, 1)
        notes = (C.c_int32 * 10)()
        status, note_count = get(engine, 1303, 11, 10, notes)
        behaviour = (C.c_int32 * 5)()
        if 0 in behaviour[: get(engine, 1305, 19, 5, behaviour)[1]]:
            # compiled at run time: NVIDIA's library offers it only where there is a driver, which
            # the oracle has not
            continue
        knobs = (C.c_void_p * 8)(*[create(7).value for _ in range(8)])
        plan = create(5)
        assert set_values(plan, 401, 15, configuration) == 0
        device.give(plan, 407, 400)
        status = finalize(plan)
        found.append([
            get_int(engine, 1301), list(notes[:note_count]), get(configuration, 302, 15, 8, knobs)[1],
            get_int(configuration, 303), status, get_int(plan, 402) if status == 0 else None,
        ])  # fmt: skip
    return found


def case_statuses():
    """What misuse returns, call by call."""
    out = []
    empty = create(17)
    out.append(["get before finalize", get(empty, 902, 3, 8, (C.c_int64 * 8)())[0]])
    out.append(["finalize empty", finalize(empty)])
    t = create(17)
    out.append(["wrong attribute", set_values(t, 100, 3, 2)])
    for name, kind, values in (
        (902, 3, [2, 3, 4]),
        (903, 3, [12, 4, 1]),
        (901, 1, [0]),
        (906, 3, [7]),
        (900, 3, [16]),
    ):
        out.append([name, set_values(t, name, kind, *values)])
    out.append(["finalize", finalize(t)])
    out.append(["again", finalize(t)])
    out.append(["set after", set_values(t, 906, 3, 8)])
    for requested in (8, 2, 0):
        values = (C.c_int64 * 8)()
        out.append(
            [requested, get(t, 902, 3, requested, values if requested else None), list(values)]
        )
    out.append(["destroy", CUDNN.cudnnBackendDestroyDescriptor(t)])
    out.append(["destroy nothing", CUDNN.cudnnBackendDestroyDescriptor(None)])
    out.append(
        ["no such descriptor", CUDNN.cudnnBackendCreateDescriptor(99, C.byref(C.c_void_p()))]
    )
    return out


def case_descriptors():
    """Which descriptor types there are, and what becomes of attributes that no release has."""
    out = []
    for kind in range(-1, 128):
        made = C.c_void_p()
        out.append(CUDNN.cudnnBackendCreateDescriptor(kind, C.byref(made)))
    tensor = create(17)
    out.append([set_values(tensor, name, 3, 1) for name in (999, 4999, 9999)])
    return out


def case_new_attribute():
    """In a process that uses the GPU: an attribute whose values NVIDIA's library does not see, and one
    whose values it does (ours only)."""
    case_execute()
    hidden = set_values(create(17), 9999, 15, tensor(1, [2, 2], [2, 1]))
    return [hidden, set_values(create(17), 9999, 3, 1)]


def case_versions():
    """Versions, properties, error texts."""
    CUDNN.cudnnGetErrorString.restype = C.c_char_p
    out = []
    for name in ("cudnnGetVersion", "cudnnGetCudartVersion"):
        function = getattr(CUDNN, name)
        function.restype = C.c_size_t
        out.append(function())
    for which in range(4):
        value = C.c_int(-1)
        out.append([CUDNN.cudnnGetProperty(which, C.byref(value)), value.value])
    out.append(
        [
            CUDNN.cudnnGetErrorString(code).decode()
            for code in (0, 1001, 2000, 2002, 2004, 2010, 3000, 3007, 4003, 77)
        ]
    )
    return out


def case_convolutions():
    """Engines and workspaces of a few convolutions of ResNet-50."""
    device = Device()
    out = []
    for layer in (
        (3, 64, 7, 2, 3, 224),
        (64, 64, 3, 1, 1, 56),
        (256, 512, 1, 2, 0, 56),
        (512, 512, 3, 1, 1, 7),
    ):
        for direction in ("forward", "dgrad", "wgrad"):
            graph = convolution(device, direction, 8, *layer)
            out += [engines(device, graph, mode) for mode in (3, 2)]
    return out


def case_execute():
    """Runs one convolution on a stream (ours only)."""
    device = Device()
    graph = convolution(device, "forward", 8, 64, 128, 3, 2, 1, 56)
    heuristics, configuration, plan, pack = create(4), create(3), create(5), create(16)
    assert (
        set_values(heuristics, 201, 15, graph)
        == set_values(heuristics, 200, 8, 3)
        == finalize(heuristics)
        == 0
    )
    assert get(heuristics, 202, 15, 1, (C.c_void_p * 1)(configuration.value)) == (0, 1)
    assert set_values(plan, 401, 15, configuration) == 0
    early = CUDNN.cudnnBackendExecute(device.it, plan, pack)
    assert finalize(plan) == finalize(pack) == 0
    for descriptor in (graph, heuristics, configuration):  # a plan outlives what it was made from
        assert CUDNN.cudnnBackendDestroyDescriptor(descriptor) == 0
    return [
        early,
        CUDNN.cudnnBackendExecute(None, plan, pack),
        *(CUDNN.cudnnBackendExecute(device.it, plan, pack) for _ in "ab"),
    ]


def case_workspace():
    """[status, bytes] of a plan's workspace for variant packs: by the plan's attribute; without a
    handle; and in a process that uses the GPU, for a pack, for one that is not finalized, and for
    one that overrides shapes. None where the library has no such function."""
    if not hasattr(CUDNN, "cudnnGetExecutionPlanWorkspaceSize"):
        return None
    if WHO == "ours":
        case_execute()
    device, configuration, plan = Device(), create(3), create(5)
    graph = convolution(device, "dgrad", 8, 64, 64, 3, 1, 1, 56)
    heuristics, pack, unfinished, other = create(4), create(16), create(16), create(16)
    assert set_values(heuristics, 201, 15, graph) == set_values(heuristics, 200, 8, 3) == 0
    device.give(heuristics, 204, None)
    assert finalize(heuristics) == 0
    assert get(heuristics, 202, 15, 1, (C.c_void_p * 1)(configuration.value)) == (0, 1)
    assert set_values(plan, 401, 15, configuration) == 0
    device.give(plan, 407, 400)
    assert finalize(plan) == finalize(pack) == 0

    def asked(handle, pack):
        size = C.c_size_t(77)
        return [
            CUDNN.cudnnGetExecutionPlanWorkspaceSize(handle, plan, pack, C.byref(size)),
            size.value,
        ]

    out = [get_int(plan, 402), asked(None, pack)]
    if WHO == "ours":
        assert set_values(other, 1011, 3, 8, 64, 56, 56) == finalize(other) == 0
        out += [asked(device.it, one) for one in (pack, unfinished, other)]
    return out


print(json.dumps(globals()[f"case_{CASE}"]()))
