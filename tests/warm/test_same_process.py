"""Why it exists: a rank must not be able to tell that it started from an image (docs/warm-start.md). Each
test asks a process that started so, and one that did not, the same question."""

import contextlib
import json
import os
import pty
import resource
import signal
import subprocess
import sys

import pytest


def equal(pair):
    plain, warm = pair
    assert warm == plain
    return plain


def test_arguments(answers):
    code = """
import __main__
answer = dict(argv=sys.argv, orig=sys.orig_argv, executable=sys.executable, prefix=sys.prefix, base=sys.base_prefix,
    path=sys.path, flags=repr(sys.flags), xoptions=sys._xoptions, warnoptions=sys.warnoptions,
    file=__file__, name=__name__, spec=repr(__spec__), package=__package__, loader=type(__loader__).__name__,
    main=sorted(vars(__main__).keys() - {"answer"}), same=__main__.__dict__ is globals(), cwd=os.getcwd(),
    cmdline=repr(open("/proc/self/cmdline", "rb").read()), comm=open("/proc/self/comm").read(),
    exe=os.readlink("/proc/self/exe"))
"""
    answer = equal(answers(code, ["--a", "b c", "", "ä\udcff"]))
    assert answer["argv"][1:] == ["--a", "b c", "", "ä\udcff"]


@pytest.mark.parametrize(
    "options", [["-u"], ["-O", "-B"], ["-W", "error::ImportWarning"], ["-Xdev"], ["-P", "-s"]]
)
def test_options_of_python(answers, options):
    code = """
import warnings
answer = [repr(sys.flags), sys.path, sys.warnoptions, sys._xoptions, repr(warnings.filters), __debug__]
"""
    equal(answers(code, options=options))


def test_a_relative_script(runs, script, tmp_path):
    script("import sys; print(__file__, sys.argv, sys.path[0])")
    for name in ("job.py", "./job.py"):
        equal(runs.both([name, "x"], cwd=tmp_path))


def test_a_module_a_command_a_folder_and_a_zip_file(runs, script, tmp_path):
    import zipfile

    text = (
        "import sys; print(__name__, __file__, sys.argv, sys.path[:1], __spec__ and __spec__.name)"
    )
    script(text, "part.py")
    script(text, "__main__.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.write(tmp_path / "__main__.py", "__main__.py")
    equal(runs.both(["-m", "part", "a"], cwd=tmp_path))
    equal(runs.both(["-c", "import sys; print(sys.argv, sys.path[0], __name__)", "-m", "ä"]))
    equal(runs.both([tmp_path, "a"]))
    equal(runs.both([tmp_path / "app.zip", "a"]))


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(3)",
        "raise SystemExit('words')",
        "import sys; sys.exit(True)",
        "def f():\n    raise ValueError('x')\nf()",
        "import no_such_module",
        "print(",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os; os.abort()",
        "import os; os._exit(9)",
        "raise KeyboardInterrupt",
        "import ctypes; ctypes.string_at(0)",
        "import threading; threading.Thread(target=print, args=('late',)).start()",
        "import atexit; [atexit.register(print, n) for n in range(3)]",
    ],
)
def test_how_it_ends(runs, script, code):
    equal(runs.both([script(code)]))


def test_the_environment(answers):
    code = """
import ctypes, posix
c = ctypes.CDLL(None)
c.getenv.restype = ctypes.c_char_p
hidden = {"PHANTORA_WARM"}
answer["python"] = {k: v for k, v in os.environ.items() if k not in hidden}
answer["posix"] = len(posix.environ) - len(hidden & os.environ.keys())
answer["c"] = repr(c.getenv(b"RANK"))
os.environ["NEW"] = "1"; del os.environ["RANK"]
answer["changed"] = [repr(c.getenv(n)) for n in (b"NEW", b"RANK")]
import subprocess
answer["child"] = sorted(subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines())
answer["child"] = [line for line in answer["child"] if line.partition("=")[0] not in hidden]
"""
    answer = equal(answers(code, env={"RANK": "5", "LOCAL_RANK": "1", "MASTER_ADDR": "somewhere"}))
    assert answer["python"]["RANK"] == "5"


def test_relations_and_limits(answers):
    code = """
import resource, threading
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
answer = {name: status[name].strip() for name in ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt",
    "CapEff", "Cpus_allowed", "NoNewPrivs", "Threads")}
answer["parent"] = os.getppid(); answer["session"] = os.getsid(0)
answer["group"] = os.getpgid(0) == os.getpgid(os.getppid())
answer["limits"] = [resource.getrlimit(n) for n in range(16)]
answer["nice"] = os.nice(0); answer["threads"] = threading.active_count()
answer["ids"] = threading.main_thread().native_id == os.getpid() == threading.get_native_id()
answer["main"] = threading.current_thread() is threading.main_thread()
answer["descriptors"] = sorted(os.listdir("/proc/self/fd"))
"""

    def before():
        os.umask(0o027)
        os.nice(3)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    answer = equal(answers(code, preexec_fn=before))
    assert answer["Umask"] == "0027"


def test_the_pid_is_the_one_that_the_parent_started(runs, script):
    process = runs.start([script("import os; print(os.getpid())")], True)
    out, _ = process.communicate(timeout=60)
    assert int(out) == process.pid


def test_handed_down_descriptors(runs, script):
    path = script("import os, sys; n = int(sys.argv[1]); os.write(n, b'through'); os.close(n)")
    for warm in (False, True):
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        process = runs.start([path, writer], warm, close_fds=False)
        os.close(writer)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert os.read(reader, 100) == b"through"
        assert os.read(reader, 100) == b""  # nobody else holds the other end
        os.close(reader)


def test_signals(answers):
    code = """
import signal
answer["of python"] = {s.name: repr(signal.getsignal(s)) for s in signal.Signals}
got = []
signal.signal(signal.SIGUSR2, lambda number, frame: got.append(number))
os.kill(os.getpid(), signal.SIGUSR2)
answer["delivered"] = got
try:
    os.kill(os.getpid(), signal.SIGINT)
    answer["interrupted"] = False
except KeyboardInterrupt:
    answer["interrupted"] = True
"""
    equal(answers(code, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)))
    ignored = equal(answers(code, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)))
    assert not ignored["interrupted"]


STREAMS = """
def stream(s):
    if s is None:
        return None
    names = ("encoding", "errors", "line_buffering", "write_through", "newlines", "name", "mode")
    raw = getattr(s.buffer, "raw", s.buffer)
    return [getattr(s, n) for n in names] + [type(s.buffer).__name__, raw.name, raw.mode, raw.closefd, s.isatty()]
for name in ("stdin", "stdout", "stderr"):
    answer[name] = stream(getattr(sys, name)); answer["__" + name] = getattr(sys, name) is getattr(sys, f"__{name}__")
"""


@pytest.mark.parametrize(
    "env", [{}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONIOENCODING": "latin-1:replace"}, {"LC_ALL": "C"}]
)
def test_standard_streams(answers, env):
    equal(answers(STREAMS, env=env))
    equal(answers(STREAMS, env=env, options=["-u"]))


def test_streams_of_a_terminal_and_closed_streams(runs, script):
    path = script(
        "import json, sys\nanswer = {}\n" + STREAMS + "json.dump(answer, open(sys.argv[1], 'w'))"
    )
    for option in ([], ["-u"]):
        results = []
        for warm in (False, True):
            controller, terminal = pty.openpty()
            where = path.with_suffix(".json")
            ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
            process = runs.start([*option, path, where], warm, **ends)
            assert process.wait(60) == 0
            os.close(terminal)
            os.close(controller)
            results.append(json.loads(where.read_text()))
        equal(results)
    results = []
    for warm in (False, True):
        ends = dict.fromkeys(("stdin", "stdout", "stderr"))
        process = runs.start(
            [path, where], warm, preexec_fn=lambda: (os.close(0), os.close(2)), **ends
        )
        assert process.wait(60) == 0
        results.append(json.loads(where.read_text()))
    assert equal(results)["stdin"] is None


def test_input_reaches_it(runs, script):
    path = script("import sys; print(repr(sys.stdin.read())); print('e', file=sys.stderr)")
    for warm in (False, True):
        process = runs.start([path], warm, stdin=subprocess.PIPE)
        out, err = process.communicate(b"a\nb", timeout=60)
        assert (out, err) == (b"'a\\nb'\n", b"e\n")


def test_the_debugger(runs, script):
    path = script("x = 1\nx = 2\nprint('x is', x)\n")
    results = []
    for warm in (False, True):
        process = runs.start(["-m", "pdb", path], warm, stdin=subprocess.PIPE)
        out, err = process.communicate(b"n\nn\np x\nwhere\nc\nq\n", timeout=60)
        results.append((process.returncode, out, err))
    equal(results)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(runs, script, method):
    path = script(f"""
import multiprocessing, os, sys, threading
import numpy
def work(n):
    return n * n, os.getppid() == parent or {method!r} == "forkserver", sorted(sys.argv[1:])
def set_parent(n):
    global parent
    parent = n
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    with context.Pool(2, set_parent, (os.getpid(),)) as pool:
        print(pool.map(work, range(5)))
    queue = context.Queue()
    child = context.Process(target=queue.put, args=("x",))
    child.start()
    print(queue.get(), child.join(), child.exitcode)
""")
    (status, out, err), warm = runs.both([path, "a"])
    assert status == 0, err
    assert warm[:2] == (status, out)


WIPED = """
import mmap
secret = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
secret.madvise(mmap.MADV_WIPEONFORK if hasattr(mmap, "MADV_WIPEONFORK") else 18)
import os
os.register_at_fork(after_in_child=lambda: secret.write(b"state of a generator"))
"""


def test_memory_that_no_child_may_inherit_is_empty(new_runs, script):
    """glibc keeps the state of its random numbers in such memory."""
    script(WIPED, "wiped.py")
    path = script("import wiped; print(wiped.secret[:20] == bytes(20), wiped.secret[20:25])")
    runs = new_runs("time,wiped")
    env = {"PYTHONPATH": f"{runs.folder}/startup:{path.parent}"}
    status, out, err = runs.run([path], True, env)
    # The hook wrote twice: into the memory that became the image, and after it in the process itself.
    assert (status, out, err) == (0, "True b'state'\n", "")


def test_random_numbers_differ_between_processes(runs, script):
    path = script(
        "import random, numpy, os\nprint(random.random(), numpy.random.random(), os.urandom(4))"
    )
    said = [set(runs.run([path], True)[1].split()) for _ in range(2)]
    assert not said[0] & said[1]


def test_the_host_name_is_the_process_own(runs, script):
    """A cached name would be that of the node on which the image was made."""
    path = script(
        "import platform, socket, os\n"
        "print(platform.node() == os.uname().nodename == socket.gethostname(), platform.platform())"
    )
    equal(runs.both([path]))


def test_modules_are_there_once_they_are_imported(answers):
    code = """
answer["before"] = sorted(n for n in sys.modules if n.partition(".")[0] not in sys.stdlib_module_names)
import importlib.util
spec = importlib.util.find_spec("numpy")
answer["spec"] = [spec.name, spec.origin, list(spec.submodule_search_locations), "numpy" in sys.modules]
import numpy.linalg as linalg
import yaml
answer["after"] = sorted(n for n in sys.modules if n.partition(".")[0] == "numpy")
answer["same"] = [sys.modules["numpy"] is numpy, sys.modules["numpy.linalg"] is linalg]
answer["names"] = [numpy.__spec__.name, numpy.__file__]
import numpy
answer["works"] = float(numpy.linalg.inv(numpy.eye(3) * 2).sum())
"""
    equal(answers(code.replace("import numpy.linalg as", "import numpy\nimport numpy.linalg as")))


def test_memory_behaves(answers):
    """The heap grows and shrinks, stacks are as large as the limit says, and threads run."""
    code = """
import ctypes, threading
blocks = [bytearray(1000) for _ in range(200000)]
answer["sum"] = sum(map(len, blocks)); del blocks
ctypes.CDLL(None).malloc_trim(0)
blocks = [bytes(5000) for _ in range(20000)]
answer["zero"] = all(not any(b[::100]) for b in blocks[::100])
def deep(n): return 0 if n == 0 else 1 + deep(n - 1)
sys.setrecursionlimit(20000)
answer["deep"] = deep(8000)
class Attributes(ctypes.Structure): _fields_ = [("space", ctypes.c_char * 64)]
c, a = ctypes.CDLL(None), Attributes()
c.pthread_self.restype = ctypes.c_void_p
c.pthread_getattr_np(ctypes.c_void_p(c.pthread_self()), ctypes.byref(a))
where, size = ctypes.c_void_p(), ctypes.c_size_t()
c.pthread_attr_getstack(ctypes.byref(a), ctypes.byref(where), ctypes.byref(size))
answer["stack"] = size.value > 4 << 20
got = []
workers = [threading.Thread(target=lambda n=n: got.append(sum(range(n)))) for n in range(20)]
[w.start() for w in workers]; [w.join() for w in workers]
answer["threads"] = sorted(got)
pid = os.fork()
if not pid: os._exit(7)
answer["fork"] = os.waitpid(pid, 0)[1]
import time
answer["clocks"] = abs(time.time() - float(os.popen("date +%s.%N").read())) < 60 and time.monotonic() > 0
"""
    equal(answers(code))


def test_many_processes_start_at_once(new_runs, script):
    """The first makes the image, and all others wait for it."""
    runs = new_runs()
    path = script("import os, numpy; print(os.environ['RANK'], numpy.ones(3).sum())")
    processes = [runs.start([path], True, env={"RANK": str(rank)}) for rank in range(24)]
    said = sorted(int(p.communicate(timeout=120)[0].split()[0]) for p in processes)
    assert said == list(range(24))
    assert runs.starts() == ["warm"] * 24


def test_a_signal_while_the_image_is_made_ends_the_process(new_runs, script):
    runs = new_runs("time,slow_module")
    path = script("print(1)")
    script("import time; time.sleep(60)", "slow_module.py")
    env = {"PYTHONPATH": f"{runs.folder}/startup:{path.parent}"}
    process = runs.start([path], True, env=env)
    while not list((runs.folder / "warm").glob("*.said")):
        assert process.poll() is None
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=10)  # its helper holds no stream of ours
    assert sys.executable
