"""muster.elastic_launch from the installed wheel: results, failures, interrupts."""
from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import run

# The plain python3 for certain, and others from 3.9 on that are here.
OTHERS = [*Path.home().glob(".pyenv/versions/3.*/bin/python3"),
          *[Path(p) for p in (shutil.which(f"python3.{m}") for m in range(9, 20)) if p]]
PYTHONS = ["python3"]
for path in sorted(OTHERS):
    known = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2])"],
                           capture_output=True, text=True)
    if known.returncode == 0 and tuple(map(int, known.stdout.split())) in ((3, 9), (3, 13)):
        PYTHONS.append(str(path))

PRELUDE = """
import os, sys, time
import muster

def config(n=4, **more):
    return muster.LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=n, max_restarts=0, **more)

def times(x):
    return (x * int(os.environ["RANK"]), os.environ["WORLD_SIZE"])

def fail(rank):
    if int(os.environ["RANK"]) == rank:
        raise KeyError("the reason")
    time.sleep(30)

def die(rank):
    if int(os.environ["RANK"]) == rank:
        os.kill(os.getpid(), 9)
    time.sleep(30)

def vanish():
    os._exit(0)

def unpicklable():
    return lambda: None

def wait(path):
    open(os.path.join(path, "pid." + os.environ["RANK"]), "w").write(str(os.getpid()))
    time.sleep(100)
"""


def script(venv: Path, tmp_path: Path, body: str, *args: object, ok: bool = True):
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + '\nif __name__ == "__main__":\n'
                    + "".join(f"    {line}\n" for line in body.splitlines()))
    return run(venv / "bin/python", path, *args, ok=ok, timeout=100, cwd=tmp_path)


def test_a_job_from_the_command_line(venv: Path) -> None:
    done = run(venv / "bin/muster", "run", "--nproc-per-node=2", "--no-python", "sh", "-c",
               "echo rank $RANK")
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"]


def test_python_m_muster_runs_the_workers_with_that_python(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import sys; print(sys.prefix)")
    done = run(venv / "bin/python", "-m", "muster", "run", tmp_path / "t.py")
    assert Path(done.stdout.strip()) == venv


def test_results_of_four_workers(venv: Path, tmp_path: Path) -> None:
    done = script(venv, tmp_path, "print(muster.elastic_launch(config(), times)(10))")
    assert done.stdout == "{0: (0, '4'), 1: (10, '4'), 2: (20, '4'), 3: (30, '4')}\n"


@pytest.mark.parametrize("python", PYTHONS)
def test_other_interpreters(wheel: Path, tmp_path: Path, python: str) -> None:
    run(python, "-m", "venv", "--without-pip", tmp_path / "v")
    site = run(tmp_path / "v/bin/python", "-c",
               "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    run(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
        "--disable-pip-version-check", "--target", site, wheel)
    done = script(tmp_path / "v", tmp_path, "print(muster.elastic_launch(config(2), times)(1))")
    assert done.stdout == "{0: (0, '2'), 1: (1, '2')}\n"


def test_a_command_has_no_results(venv: Path, tmp_path: Path) -> None:
    done = script(venv, tmp_path, "print(muster.elastic_launch(config(2), 'echo')('hi', 7))")
    assert sorted(done.stdout.splitlines()) == ["hi 7", "hi 7", "{0: None, 1: None}"]


def test_an_exception_comes_back_with_its_traceback(venv: Path, tmp_path: Path) -> None:
    done = script(venv, tmp_path, """
try:
    muster.elastic_launch(config(), fail)(2)
except muster.ChildFailedError as e:
    rank, first = e.get_first_failure()
    print("rank", rank, "local", first.local_rank, "exit", first.exitcode, "name", e.name)
    print("traceback", "KeyError: 'the reason'" in first.message, "in fail" in first.message)
    print("all", sorted(e.failures), "KeyError" in str(e))
""")
    assert done.stdout.splitlines()[-3:] == [
        "rank 2 local 2 exit 1 name fail", "traceback True True", "all [0, 1, 2, 3] True"]


def test_a_worker_that_was_killed(venv: Path, tmp_path: Path) -> None:
    done = script(venv, tmp_path, """
try:
    muster.elastic_launch(config(2), die)(1)
except muster.ChildFailedError as e:
    rank, first = e.get_first_failure()
    print(rank, first.exitcode, first.signal_name(), first.message)
""")
    assert re.search(r"^1 -9 SIGKILL Signal 9 \(SIGKILL\) received by PID \d+$", done.stdout, re.M)


@pytest.mark.parametrize(("body", "kind", "says"), [
    ("muster.elastic_launch(config(1), lambda: 1)()", "TypeError", "cannot be pickled"),
    ("muster.elastic_launch(config(1), times)(open('/dev/null'))", "TypeError",
     "cannot be pickled"),
    ("muster.elastic_launch(config(1), unpicklable)()", "ChildFailedError",
     "the result of rank 0 cannot be pickled"),
    ("muster.elastic_launch(config(1), vanish)()", "LaunchError", "left no result"),
    ("muster.elastic_launch(config(0), times)(1)", "LaunchError", "exit code 1"),
    ("muster.elastic_launch(config(1, start_method='fork'), times)(1)", "ValueError", "spawn"),
    ("muster.elastic_launch(config(1), 7)", "TypeError", "function, or a command"),
    ("muster.elastic_launch(config(1, rdzv_backend='c10d', rdzv_configs={'a': '1,2'}), times)(1)",
     "ValueError", "comma"),
])
def test_bad_input(venv: Path, tmp_path: Path, body: str, kind: str, says: str) -> None:
    done = script(venv, tmp_path, body, ok=False)
    assert done.returncode == 1
    assert kind in done.stderr and says in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_parent_ends(venv: Path, tmp_path: Path, number: int) -> None:
    """Ctrl-C, and the worst case."""
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + "\nif __name__ == '__main__':\n"
                    f"    muster.elastic_launch(config(2), wait)({str(tmp_path)!r})\n")
    parent = subprocess.Popen([venv / "bin/python", path], stderr=subprocess.PIPE, text=True)
    pids = [tmp_path / "pid.0", tmp_path / "pid.1"]
    deadline = time.monotonic() + 60
    while not all(p.exists() and p.read_text() for p in pids):
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.02)
    workers = [int(p.read_text()) for p in pids]
    parent.send_signal(number)
    said = parent.communicate(timeout=60)[1]
    if number == signal.SIGINT:
        assert said.rstrip().endswith("KeyboardInterrupt")
    while any(os.path.exists(f"/proc/{pid}") for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
