"""The pure parts of src/warm/server.py, by table."""
import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("warm_server", Path(__file__).resolve().parents[2] / "src/warm/server.py")
server = importlib.util.module_from_spec(spec)
spec.loader.exec_module(server)

SHAPES = [
    ((1, {}, []), ""),
    ((1, {7: "/data/set.bin", 8: "/dev/null", 9: "/dev/urandom", 10: "/memfd:x (deleted)"}, []), ""),
    ((2, {}, []), "1 more thread"),
    ((9, {}, []), "8 more threads"),
    ((1, {7: "socket:[123]"}, []), "an open socket"),
    ((1, {7: "anon_inode:[eventpoll]"}, []), "an open eventpoll"),
    ((1, {7: "anon_inode:[io_uring]"}, []), "an open io_uring"),
    ((1, {7: "anon_inode:inotify"}, []), "an open inotify"),
    ((1, {7: "pipe:[5]"}, []), "an open pipe"),
    ((1, {7: "locked:/data/lock"}, []), "a locked file (/data/lock)"),
    ((1, {7: "/dev/nvidiactl"}, []), "an open accelerator (/dev/nvidiactl)"),
    ((1, {7: "/dev/nvidia-uvm"}, []), "an open accelerator (/dev/nvidia-uvm)"),
    ((1, {7: "/dev/kfd"}, []), "an open accelerator (/dev/kfd)"),
    ((1, {7: "/dev/dri/renderD128"}, []), "an open accelerator (/dev/dri/renderD128)"),
    ((1, {7: "/dev/accel/accel0"}, []), "an open accelerator (/dev/accel/accel0)"),
    ((1, {}, [4711]), "a child process"),
    ((1, {}, [], "cuda is initialised"), "cuda is initialised"),
]


@pytest.mark.parametrize("shape, why", SHAPES)
def test_what_must_not_be_forked(shape, why):
    assert server.problem_of(*shape) == why


@pytest.mark.parametrize("before, after, without, want", [
    ({}, {}, (), {}),
    ({b"A": b"1"}, {b"A": b"1"}, (), {}),
    ({b"A": b"1"}, {b"A": b"2"}, (), {b"A": b"2"}),
    ({b"A": b"1"}, {}, (), {b"A": None}),
    ({}, {b"A": b"1", b"B": b"2"}, (b"B",), {b"A": b"1"}),
])
def test_what_changed_in_an_environment(before, after, without, want):
    assert server.difference(before, after, without) == want


@pytest.fixture()
def environ(monkeypatch):
    """os.environ with its own table; what is installed in it goes away afterwards."""
    import os
    for table in (os.environ, os.environb):
        monkeypatch.setattr(table, "_data", {b"HOME": b"/h", b"OMP_NUM_THREADS": b"1"})
    return os.environ


def test_reads_are_seen_and_copies_are_not(environ):
    import os
    seen = []
    reads = server.Reads(environ._data, {}, None, lambda table, key, frame: seen.append(key)).install()
    environ.get("RANK"), "LOCAL_RANK" in environ, os.environb.get(b"TORCHELASTIC_RUN_ID")
    dict(environ), environ.copy(), list(environ.items())
    assert os.getenv("HOME") == "/h"
    assert seen == [b"RANK", b"LOCAL_RANK", b"TORCHELASTIC_RUN_ID", b"HOME"]
    assert [server.is_rank(k) for k in (*seen, b"TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK")] == [True] * 3 + [False] * 2
    reads.remove()
    environ.get("RANK")
    assert len(seen) == 4 and environ["HOME"] == "/h"


@pytest.mark.parametrize("does, told", [
    ("environ['HF_HOME'] = '/x'", ["HF_HOME"]),
    ("environ['HF_HOME'] = '/x'; environ['HF_HOME'] = '/y'", ["HF_HOME"]),
    ("environ.setdefault('HF_HOME', '/x'); environ.update(HOME='/y')", ["HF_HOME", "HOME"]),
    ("del environ['HOME']; environ['HOME'] = '/h'", []),
    ("environ['HOME'] = '/h'", []),  # what was read
    ("environ['OTHER'] = '/h'", []),  # what nobody has read
    ("environ['HOME'] = '/x'; environ['HOME'] = '/h'", ["HOME"]),
    ("import hub; environ['HF_HOME'] = '/x'", []),  # A plain worker would not see it either.
    ("from hub import thing; environ['HF_HOME'] = '/x'", []),
    ("import over; environ['HF_HOME'] = '/x'", []),  # It had led to the import of hub.
    ("environ['OMP_NUM_THREADS'] = '1'", []),
    ("environ['OMP_NUM_THREADS'] = '4'", ["OMP_NUM_THREADS"]),
    ("environ['KMP_BLOCKTIME'] = '4'", ["KMP_BLOCKTIME"]),
])
def test_who_sets_what_was_read(environ, monkeypatch, does, told):
    import sys
    import types
    for name in ("hub", "over", "numpy"):
        module = types.ModuleType(name)
        exec("def thing(): pass", module.__dict__)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    readers = {b"HF_HOME": {"hub.constants": (None, ["hub.constants", "over"])}, b"HOME": {"hub.constants": (b"/h", ["hub.constants"])}}
    got = []
    server.Variables(environ._data, readers, lambda key, late: got.append((key.decode(), sorted(late)))).install()
    exec(does, {"environ": environ, "__name__": "__main__"})
    assert got == [(name, ["numpy" if "_" in name and name != "HF_HOME" else "hub.constants"]) for name in told]


def test_memory_is_looked_at_after_each_import(monkeypatch):
    import types
    monkeypatch.setattr(server, "tell", lambda *words: None)
    monkeypatch.setattr(server, "problem", lambda known: "")
    given = types.SimpleNamespace(modules=["json", "string"], learned=[], never=[], readers={}, optional=False,
                                  memory_kb=1 << 40, learn=False)
    server.import_all(given, set())
    given.memory_kb = 2048
    with pytest.raises(server.Refuse, match="json takes more than 2 MB"):
        server.import_all(given, set())


AHEAD = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("warm_server", sys.argv[1])
server = importlib.util.module_from_spec(spec)
spec.loader.exec_module(server)
sys.path.insert(0, os.path.abspath("lib"))
server.ReadAhead.SLOW_S = float(sys.argv[2])
ahead = server.ReadAhead(sys.argv[3])
ahead.run()
read = len(ahead.data)
with open("lib/pack/m7.py", "w") as f:
    f.write("value = 7777")  # It is as if the import had come first.
with ahead:
    for i in range(80):
        importlib.import_module("pack.m%d" % i)
values = [sys.modules["pack.m%d" % i].value for i in range(80)]
assert server.ReadAhead("").stat is importlib._bootstrap_external._path_stat, "put back"
assert len(os.listdir("/proc/self/task")) == 1 and not ahead.data
sources = server.Sources(ahead.stats)
gone = sources.changed(sources.mine)
ahead.keep()
print(read, sum(values) - sum(range(80)), os.path.basename(str(gone)))
"""


def test_files_that_are_known_are_read_ahead(tmp_path):
    """All of them, by threads that are gone afterwards, where files are slow to come; where they are not, only the few that
    show it. A file that changes in between has changed since it was imported."""
    import compileall
    import subprocess
    import sys

    pack, known = tmp_path / "lib/pack", tmp_path / "cache/known"
    pack.mkdir(parents=True)
    (tmp_path / "ahead.py").write_text(AHEAD)

    def start(slow: float) -> str:
        for i in range(80):
            (pack / f"m{i}.py").write_text(f"value = {i}\n")
        (pack / "__init__.py").touch()
        compileall.compile_dir(str(pack), quiet=1, legacy=False)
        done = subprocess.run([sys.executable, "ahead.py", server.__file__, str(slow), str(known)], cwd=tmp_path, text=True,
                              capture_output=True, timeout=120)
        return done.stdout + done.stderr

    known.parent.mkdir()
    known.write_text("".join(f"{pack}/{n}.py\n" for n in ["__init__", "gone", *(f"m{i}" for i in range(80))]) + "\0\n")
    assert start(0.0).split() == ["81", "0", "m7.py"]
    assert f"{pack}/m3.py" in known.read_text().split() and f"{pack}/gone.py" not in known.read_text()
    read, more, gone = start(3600.0).split()
    assert int(read) < 12 and more == "7770" and gone == "None"
