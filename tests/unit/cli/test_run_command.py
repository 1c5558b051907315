"""`bestof run` is transparent: a program cannot tell it from `python`, byte for byte."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import zipfile

import pytest
from bestof_process import Bestof

NOTHING_CHOSEN = b"no selector was called, so there was nothing to choose\n"

PROGRAMS = {
    "names": """
import sys
print(list(globals()))
print(__name__, __file__, __spec__, __package__, __doc__)
print(type(__builtins__), type(__loader__).__name__, __loader__.name, __loader__.path)
print(sys.argv, sys.path, sys.modules["__main__"].__dict__ is globals())
""",
    "docstring and annotations": '"""words"""\nx: int = 3\nprint(__doc__, __annotations__)\n',
    "future flags stay its own": "def f(x: undefined): pass\n",
    "stdin": "import sys\nprint(sys.stdin.read()[::-1])\n",
    "exit none": "import sys\nsys.exit()\n",
    "exit number": "import sys\nsys.exit(7)\n",
    "exit big": "import sys\nsys.exit(300)\n",
    "exit true": "import sys\nsys.exit(True)\n",
    "exit text": "import sys\nprint('before')\nsys.exit('so it ends')\n",
    "exit tuple": "raise SystemExit((1, 2))\n",
    "hard exit": "import os\nos._exit(5)\n",
    "exception": "def f(n):\n    return 1 / n\n\n\nprint('x')\nf(0)\n",
    "an error of bestof": """
from bestof.errors import StoreError
raise StoreError('mine\\nand mine')
""",
    "chained": """
try:
    {}['a']
except KeyError as e:
    raise ValueError('two\\nlines') from e
""",
    "context": "try:\n    {}['a']\nexcept KeyError:\n    import nowhere_to_be_found\n",
    "group": """
import sys
if sys.version_info >= (3, 11):
    raise eval("ExceptionGroup('g', [ValueError(1), KeyError('two')])")
""",
    "syntax error": "print('never')\ndef f(:\n    pass\n",
    "indentation error": "if True:\n    a = 1\n  b = 2\n",
    "own hook": """
import sys
def hook(kind, error, tb):
    print('hook', kind, tb.tb_lineno, tb.tb_frame.f_code.co_name)
sys.excepthook = hook
1 / 0
""",
    "exit in hook": "import sys\nsys.excepthook = lambda *a: sys.exit(9)\n1 / 0\n",
    "recorded last error": """
import atexit, sys, traceback
atexit.register(lambda: print(sys.last_type, len(traceback.extract_tb(sys.last_traceback))))
1 / 0
""",
    "interrupt": "print('begun', flush=True)\nraise KeyboardInterrupt\n",
    "real interrupt": """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(9)
""",
    "terminate": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)\n",
    "default signals": "import signal\nprint([signal.getsignal(s) for s in (2, 13, 15)])\n",
    "exit handlers see globals": """
import atexit
word = 'alive'
atexit.register(lambda: print(word))
""",
    "threads outlive the module": """
import threading, time
word = 'alive'
def work():
    threading.main_thread().join()
    print(word, __name__)
threading.Thread(target=work).start()
""",
    "thread fails": """
import threading
t = threading.Thread(target=lambda: 1 / 0, name='t')
t.start()
t.join()
""",
    "destructors": """
class A:
    def __del__(self):
        print('gone')
a = A()
print('end')
""",
    "pickling": """
import pickle
class A: pass
print(type(pickle.loads(pickle.dumps(A()))), pickle.dumps(A))
""",
    "latin source": "# -*- coding: latin-1 -*-\nprint(ascii('é'))\n".encode("latin-1"),
    "byte order mark": b"\xef\xbb\xbfprint('marked')\r\nprint('lines')\r\n",
    "imports its neighbour": "import neighbour\nprint(neighbour.__file__)\n",
    "deprecations are shown": "import warnings\nwarnings.warn('old', DeprecationWarning)\n",
    "a fork ends without a summary of its own": """
import os
if os.fork():
    os.wait()
    print('parent')
else:
    print('child')
""",
}

MODULE = """
import sys
from . import other
print(list(globals()), __spec__.name, __package__, __name__, __file__, __cached__)
print(__loader__ is __spec__.loader)
print(sys.argv, sys.path, sys.modules["__main__"].__dict__ is globals())
"""

TORCH = "import os\nthreads = os.environ['OMP_NUM_THREADS']\nhere = __loader__, __spec__\n"

SPAWN = """
import multiprocessing, sys
class Box:
    def __init__(self, n): self.n = n
def work(box): return Box(box.n + 1)
if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(work, [Box(1)])[0].n, work.__module__)
else:
    print(__name__, __file__, flush=True)
"""


def same(
    ours: subprocess.CompletedProcess[bytes], plain: subprocess.CompletedProcess[bytes]
) -> None:
    """Assert that output, errors and end are equal, apart from the summary at the end of the
    errors.
    """
    assert ours.stdout == plain.stdout
    assert ours.returncode == plain.returncode
    assert ours.stderr.startswith(plain.stderr)
    rest = ours.stderr[len(plain.stderr) :]
    assert rest.count(b"bestof:") <= 1
    assert rest == b"" or rest.endswith(NOTHING_CHOSEN)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_as_under_python(bestof: Bestof, name: str) -> None:
    bestof.write("neighbour.py", "")
    bestof.write("sub/x.py", PROGRAMS[name])
    bestof.write("sub/neighbour.py", "")
    arguments = ("sub/x.py", "--report", "-m", "--", "a b", "")
    plain = bestof.python(*arguments, stdin=b"words")
    ours = bestof("run", *arguments, stdin=b"words")
    same(ours, plain)
    lost = name in ("hard exit", "terminate")
    assert ours.stderr.endswith(NOTHING_CHOSEN) is not lost


def test_the_shell_sees_the_signal(bestof: Bestof) -> None:
    bestof.write("x.py", "raise KeyboardInterrupt\n")
    assert bestof("run", "x.py").returncode == -signal.SIGINT


@pytest.mark.parametrize("path", ["./x.py", "../here/x.py", "link.py", "folder/../x.py"])
def test_the_script_is_found_as_python_finds_it(bestof: Bestof, path: str) -> None:
    bestof.folder /= "here"
    bestof.write("x.py", PROGRAMS["names"] + "1 / 0\n")
    (bestof.folder / "folder").mkdir()
    (bestof.folder / "link.py").symlink_to(bestof.folder / "x.py")
    same(bestof("run", path), bestof.python(path))


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_work(bestof: Bestof, method: str) -> None:
    bestof.write("x.py", SPAWN)
    plain = bestof.python("x.py", method)
    assert plain.returncode == 0
    same(bestof("run", "x.py", method), plain)


def test_a_module_runs_as_under_python(bestof: Bestof) -> None:
    bestof.write("package/__init__.py", "")
    bestof.write("package/__main__.py", MODULE)
    bestof.write(
        "package/other.py", "import sys\nif __name__ == '__main__':\n    sys.exit(len(sys.argv))\n"
    )
    for module in ("package", "package.__main__", "package.other"):
        same(bestof("run", "-m", module, "-m", "a"), bestof.python("-m", module, "-m", "a"))


SHOWN = """
import sys, helper
assert sys.modules["__main__"].__dict__ is globals()
print(sys.argv, sys.path[0], sys.path[1].endswith(".zip"), helper.__file__)
print(__name__, __file__, repr(__package__), __cached__, type(__loader__).__name__, __doc__)
print(__spec__.name, __spec__.origin, repr(__spec__.parent), __spec__.loader is __loader__)
if sys.argv[1:] == ["fail"]:
    raise SystemExit(7)
"""


@pytest.mark.parametrize("flag", ["", "-P"])
@pytest.mark.parametrize("path", ["app", "app/", "./app", "sub/../app", "app.zip", "run", "/app"])
def test_a_folder_or_a_zip_file_runs_as_under_python(bestof: Bestof, path: str, flag: str) -> None:
    if flag and sys.version_info < (3, 11):
        pytest.skip("-P came with Python 3.11")
    files = {"__main__.py": SHOWN, "helper.py": "", "torch.py": "enabled = False\n"}
    (bestof.folder / "sub").mkdir()
    for name, text in files.items():
        bestof.write(f"app/{name}", text)
    with zipfile.ZipFile(bestof.folder / "app.zip", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    # An executable zip file begins with a line for the shell.
    bestof.write("run", b"#!/usr/bin/env python3\n" + (bestof.folder / "app.zip").read_bytes())
    path = str(bestof.folder / "app") if path == "/app" else path
    flags = [flag] if flag else []
    for arguments in ((path, "a", "-m"), (path, "fail")):
        plain = bestof.python(*flags, *arguments)
        ours = bestof("run", *arguments, flags=flags)
        assert ours.stdout.decode() == plain.stdout.decode()
        assert ours.returncode == plain.returncode == (7 if "fail" in arguments else 0)
    assert path in ours.stderr.decode()


def test_a_module_may_have_any_loader_of_code(bestof: Bestof) -> None:
    """Loaders of editable installs wrap another one."""
    bestof.write("real.py", "print(__name__, __spec__.name)\n")
    wrap = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Wrapped:\n"
        "    def __init__(self, loader): self._loader = loader\n"
        "    def __getattr__(self, name): return getattr(self._loader, name)\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        spec = PathFinder.find_spec(name, path) if name == 'real' else None\n"
        "        if spec is not None: spec.loader = Wrapped(spec.loader)\n"
        "        return spec\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    bestof.write("wrapped.py", wrap)
    begin = (
        "import wrapped, sys; from bestof.cli import main; sys.exit(main(['run', '-m', 'real']))"
    )
    ended = bestof.python("-c", begin)
    assert ended.stdout == b"__main__ real\n", ended.stderr


def test_a_reader_that_leaves_is_python_s_matter(bestof: Bestof) -> None:
    read_end_closed = (
        "import os, sys\nr, w = os.pipe()\nos.dup2(w, 1)\nos.close(w)\nos.close(r)\nprint('lost')\n"
    )
    bestof.write("y.py", read_end_closed)
    plain, ours = bestof.python("y.py"), bestof("run", "y.py")
    assert plain.returncode == ours.returncode == 120
    assert plain.stderr in ours.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "nothing to run"),
        (("nowhere.py",), "'nowhere.py': No such file or directory"),
        (("folder",), "'folder': it has no file __main__.py"),
        (("-m", "nowhere.to.be"), "'nowhere.to.be'"),
        (("-m", "sys"), "it has no Python code"),
        (("--report", "x.pdf", "x.py"), ".json, .html, .txt"),
        (("--report", "nowhere/x.json", "x.py"), "nowhere/x.json"),
    ],
)
def test_wrong_usage_is_one_line_and_runs_nothing(
    bestof: Bestof, arguments: tuple[str, ...], word: str
) -> None:
    bestof.write("x.py", "print('ran')\n")
    (bestof.folder / "folder").mkdir()
    ended = bestof("run", *arguments)
    assert ended.returncode == 2
    assert ended.stdout == b""
    assert ended.stderr.startswith(b"bestof: ")
    assert ended.stderr.count(b"\n") == 1
    assert word in ended.stderr.decode()


def test_an_unknown_option_is_wrong_usage(bestof: Bestof) -> None:
    bestof.write("x.py", "print('ran')\n")
    ended = bestof("run", "--repor", "x.json", "x.py")
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert b"--repor" in ended.stderr


def test_store_and_policy_are_set_before_the_program_begins(bestof: Bestof) -> None:
    bestof.selectors = 1
    bestof.write("x.py", "print('begun')\n")
    ended = bestof("run", "--store", "sqlite:///other.db", "--policy=rounds(3)", "x.py")
    assert ended.stdout == b"policy rounds(3)\nbegun\n"
    assert b"sqlite:///other.db" in ended.stderr


def test_torch_is_tuned_when_the_program_imports_it_and_not_before(bestof: Bestof) -> None:
    bestof.write("torch/__init__.py", TORCH)
    bestof.write("torch/part.py", "")
    program = """
import os, sys
import importlib.util
assert "torch" not in sys.modules and "numpy" not in sys.modules
finders = len(sys.meta_path)
assert importlib.util.find_spec("torch") is not None and "torch" not in sys.modules
os.environ["OMP_NUM_THREADS"] = "3"
import torch.part
loader, spec = torch.here
print(torch.enabled, torch.threads, type(loader).__name__, spec.loader is loader)
print(torch.here[0] is torch.__loader__, finders - len(sys.meta_path))
"""
    bestof.selectors = 5
    bestof.write("x.py", program)
    ended = bestof("run", "x.py")
    assert ended.stdout == b"True 3 SourceFileLoader True\nTrue 1\n"
    summary = ended.stderr.decode()
    assert re.search(r"fake selector n=3 +2\.00 s +1\.00 s +2\.00x +fast", summary)
    assert "freed memory" in summary
    assert "4 trials" in summary
    assert 5 <= summary.count("\n") <= 10


@pytest.mark.parametrize("level", ["exact", "float32", "relaxed"])
def test_the_accuracy_is_handed_on(bestof: Bestof, level: str) -> None:
    bestof.write("torch.py", "")
    bestof.write("x.py", "import sys, torch\nprint(torch.enabled, torch.ordered, sys.argv[1:])\n")
    ended = bestof("run", "--accuracy", level, "x.py", "--accuracy", "mine")
    assert ended.stdout == f"{level} {level} ['--accuracy', 'mine']\n".encode()


def test_an_accuracy_that_does_not_exist_is_wrong_usage(bestof: Bestof) -> None:
    bestof.write("x.py", "")
    ended = bestof("run", "--accuracy", "best", "x.py")
    assert ended.returncode == 2
    assert b"--accuracy" in ended.stderr
    assert b"relaxed" in ended.stderr


def test_no_trial_is_said_so(bestof: Bestof) -> None:
    bestof.selectors = 1  # one more than the trials of the fake report
    bestof.write("x.py", "")
    assert b"no trial was made" in bestof("run", "x.py").stderr


def test_a_torch_that_cannot_be_tuned_does_not_stop_the_program(bestof: Bestof) -> None:
    bestof.write("torch.py", "breaks = True\n")
    bestof.write("x.py", "import torch\nprint('worked')\n")
    ended = bestof("run", "x.py")
    assert (ended.returncode, ended.stdout) == (0, b"worked\n")
    assert b"bestof: PyTorch is not tuned: RuntimeError: fake refusal\n" in ended.stderr


def test_a_torch_that_is_not_there_is_missed_as_under_python(bestof: Bestof) -> None:
    blocker = "import sys\nsys.modules['torch'] = None\n"
    bestof.write(
        "x.py", blocker + "try:\n    import torch\nexcept ImportError:\n    print('none')\n"
    )
    assert bestof("run", "x.py").stdout == b"none\n"


@pytest.mark.parametrize("suffix", ["json", "html", "txt"])
def test_the_report_is_written_also_when_the_program_fails(bestof: Bestof, suffix: str) -> None:
    bestof.selectors = 5
    bestof.write("x.py", "import os\nos.mkdir('y')\nos.chdir('y')\n1 / 0\n")
    ended = bestof("run", "--report", f"r.{suffix}", "x.py")
    assert ended.returncode == 1
    text = (bestof.folder / f"r.{suffix}").read_text()
    assert "fake selector" in text
    assert "n=3" in text
    summary = ended.stderr.decode()
    assert summary.index("ZeroDivisionError") < summary.index("bestof: x.py ran")
    assert "fake selector n=3" in summary
    assert "4 trials" in summary
    if suffix == "json":
        assert json.loads(text)["selectors"][0]["problems"][0]["decision"] == "fast"


def test_python_dash_m_is_the_same_command(bestof: Bestof) -> None:
    bestof.write("x.py", "import sys\nprint(sys.argv, __name__)\n1 / 0\n")
    ours = subprocess.run(
        [sys.executable, "-m", "bestof", "--version"],
        cwd=bestof.folder,
        capture_output=True,
        timeout=250,
        check=True,
    )
    assert ours.stdout.startswith(b"bestof 0.")
