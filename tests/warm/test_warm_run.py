"""--warm in a job: real training, kills of anybody in any order, modules that do not do."""
import atexit
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/interop"))
from run_job import MUSTER, VENV, Job, environment, free_port, marked, run, until_gone  # noqa: E402
from patience import clock  # noqa: E402

TRAIN = ROOT / "tests/interop/run_train.py"
ORDINARY = "the ordinary way"


@functools.cache
def bare_python():
    """A Python without torch: that of build/venv may have one below it, as many people's has."""
    where = tempfile.mkdtemp(prefix="bare-python-")
    atexit.register(shutil.rmtree, where, ignore_errors=True)
    subprocess.run([os.path.realpath(VENV / "python"), "-m", "venv", "--without-pip", where], check=True)
    return f"{where}/bin/python"


def below(pid):
    """All processes below, by name."""
    out, todo = {}, [pid]
    while todo:
        p = todo.pop()
        try:
            kids = Path(f"/proc/{p}/task/{p}/children").read_text().split()
            for k in kids:
                out.setdefault(Path(f"/proc/{k}/comm").read_text().strip(), []).append(int(k))
                todo.append(int(k))
        except OSError:
            pass
    return out


def server_of(pid, patience=60):
    by = clock() + patience
    while clock() < by:
        if pids := below(pid).get("muster-warm"):
            return pids[0]
        time.sleep(0.01)
    raise AssertionError(below(pid))


# --- training ---------------------------------------------------------------------------


def train(where, name, *words, **env):
    code, text = run(where, "--standalone", "--nproc-per-node=2", "--max-restarts=2", *words, TRAIN,
                     env={"STEPS": "6", "CKPT": str(where / name), **env})
    assert code == 0 and ORDINARY not in text, text
    return [line for line in text.splitlines() if line.startswith(("LOSS", "PARAMETERS"))]


def test_training_is_bit_for_bit_the_same(tmp_path):
    cold = train(tmp_path, "cold")
    warm = train(tmp_path, "warm", "--warm")
    again = train(tmp_path, "again", "--warm", KILL="1@3")
    assert len(cold) == 7 and cold == warm
    assert sorted(set(again)) == sorted(set(cold))


def test_a_restart_imports_nothing(tmp_path):
    """The second attempt of a warm worker is there before torch could have been imported."""
    (tmp_path / "w.py").write_text(
        "import os, sys, time, torch, torch._dynamo\n"
        "print('CPU', time.process_time(), flush=True)\n"
        "sys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 2)\n")
    code, text = run(tmp_path, "--max-restarts=2", "--warm", "w.py")
    seen = [float(line.split()[1]) for line in text.splitlines() if line.startswith("CPU")]
    assert code == 0 and len(seen) == 3 and max(seen) < 0.5, text


@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_frameworks(tmp_path, name):
    here = ROOT / "tests/frameworks"
    python = ROOT / "build/frameworks/bin/python"
    if not python.exists():
        pytest.skip("build/frameworks is not there")
    env = {"PYTHON_EXEC": str(python), "HOME": str(tmp_path)}
    code, text = run(tmp_path, "--standalone", "--nproc-per-node=2", f"--warm=torch,torch._dynamo,{name}",
                     here / f"train_{name}.py", tmp_path / "state", env=env, patience=200)
    assert code == 0 and text.count("rank ") >= 2, text


def test_the_trainer_of_hugging_face(tmp_path):
    """A worker dies, and the next attempt goes on from the Trainer's checkpoint."""
    python = ROOT / "build/frameworks/bin/python"
    if not python.exists():
        pytest.skip("build/frameworks is not there")
    env = {"PYTHON_EXEC": str(python), "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    modules = "torch,torch._dynamo,transformers.trainer,transformers.models.gpt2.modeling_gpt2"
    code, text = run(tmp_path, "--standalone", "--nproc-per-node=2", "--max-restarts=1", f"--warm={modules}",
                     ROOT / "tests/frameworks/train_transformers.py", tmp_path / "out", env=env, patience=250)
    assert code == 0 and ORDINARY not in text, text
    said = sorted(line.split(" sum ") for line in text.splitlines() if line.startswith("rank "))
    assert [a for a, _ in said] == [f"rank {r} of 2 DistributedDataParallel from checkpoint-4 step 8" for r in (0, 1)]
    assert said[0][1] == said[1][1]


def test_checkpoints_in_the_background(tmp_path):
    """torch.distributed.checkpoint saves beside the training; the next attempt ends with the same bits."""
    code, text = run(tmp_path, "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--warm",
                     ROOT / "tests/warm/train_dcp.py", tmp_path / "saved", "thread")
    assert code == 0 and ORDINARY not in text, text
    said = [line.split(": ") for line in text.splitlines() if line.startswith("TRAINED")]
    assert sorted(a for a, _ in said) == [f"TRAINED rank {r} from {n} to 8" for r in (0, 1) for n in (0, 4)], text
    assert len({total for _, total in said}) == 1, text


FUNCTIONS = """
import json, os, sys
def work(x):
    import subprocess
    child = subprocess.check_output([sys.executable, "-c", "import os; print(os.environ.get('PYTHONPATH'))"], text=True)
    names = [n for n in ("torch", "torch._dynamo", "mine") if n in sys.modules]
    return x + int(os.environ["RANK"]), names, os.environ.get("PYTHONPATH"), child.strip(), sys.path
if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], os.path.abspath("lib")]
    import muster
    for warm in json.loads(sys.argv[2]):
        c = muster.LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, warm=warm)
        got = muster.elastic_launch(c, work)(40)
        print("GOT " + json.dumps([got[0], got[1], sys.path]), flush=True)
"""


def test_function_workers_of_python(tmp_path):
    """True is torch and what DDP needs (not muster/torch.py beside the worker); names are found as the caller finds them;
    variables and sys.path are those of a plain worker."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/mine.py").touch()
    (tmp_path / "job.py").write_text(FUNCTIONS)
    for path in ({}, {"PYTHONPATH": "/usr/share"}):
        warm = [False, True, ["mine"], "mine"] if not path else [False, ["mine"]]
        done = subprocess.run([VENV / "python", "job.py", str(ROOT / "python/src"), json.dumps(warm)], cwd=tmp_path, text=True,
                              timeout=200, capture_output=True, env=environment(MUSTER_COMMAND=str(MUSTER), **path))
        rows = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("GOT ")]
        assert len(rows) == len(warm) and ORDINARY not in done.stderr, done.stderr
        for how, (*ranks, paths) in zip(warm, rows):
            names = {False: [], True: ["torch", "torch._dynamo"]}[how] if isinstance(how, bool) else ["mine"]
            for rank, got in enumerate(ranks):
                assert got == [40 + rank, names, path.get("PYTHONPATH"), str(path.get("PYTHONPATH")), paths], how


# --- modules that do not do, and other bad input ------------------------------------------

BAD = {
    "no-such-module": ("nosuchmodule", {}, "the module nosuchmodule does not import: No module named"),
    "raises": ("bad", {"bad": "raise ValueError('broken here')"}, "the module bad: ValueError: broken here"),
    "exits": ("bad", {"bad": "import sys; sys.exit(3)"}, "the module bad calls sys.exit(3)"),
    "exits-hard": ("bad", {"bad": "import os; os._exit(5)"}, "it ended with exit code 5 while it imported bad"),
    "crashes": ("bad", {"bad": "import os; os.abort()"}, "it was ended by signal 6 while it imported bad"),
    "no-memory": ("bad", {"bad": "raise MemoryError()"}, "the module bad: MemoryError"),
    "interrupts": ("bad", {"bad": "raise KeyboardInterrupt()"}, "the module bad: KeyboardInterrupt"),
    "no-such-package": ("bad.sub", {"bad": "x = 1"}, "the module bad.sub does not import"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_module_that_does_not_import(tmp_path, case):
    """Its traceback, and the job starts the ordinary way."""
    value, files, why = BAD[case]
    for name, source in files.items():
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "w.py").write_text("print('RAN', flush=True)\n")
    code, text = run(tmp_path, "--nproc-per-node=2", f"--warm={value}", "w.py")
    assert code == 0 and text.count("RAN") == 2, text
    lines = [line for line in text.splitlines() if ORDINARY in line]
    assert len(lines) == 1 and why in lines[0], text
    if case == "raises":
        assert 'bad.py", line 1, in <module>' in text and "broken here" in text and "sitecustomize" not in text


LEFT = {
    "thread": ("import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", "1 more thread"),
    "socket": ("import socket; s = socket.socket(); s.bind(('127.0.0.1', 0))", "an open socket"),
    "epoll": ("import select; e = select.epoll()", "an open eventpoll"),
    "pipe": ("import os; p = os.pipe()", "an open pipe"),
    "child": ("import subprocess; c = subprocess.Popen(['sleep', '1000'])", "a child process"),
    "pool": ("import torch; torch.set_num_threads(3); (torch.randn(2000, 200) @ torch.randn(200, 2000)).sum(); "
             "torch.randn(1000, 1000).exp()", "more threads"),
    "flock": ("import fcntl; f = open('kept', 'w'); fcntl.flock(f, fcntl.LOCK_EX)", "a locked file .*"),
    "posix-lock": ("import fcntl; f = open('kept', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)", "a locked file .*"),
    "rank": ("import os; rank = int(os.environ.get('RANK', 0))", "what it saw of RANK"),
    "local-rank": ("import os; first = 'LOCAL_RANK' not in os.environ", "what it saw of LOCAL_RANK"),
    "master": ("import os; where = os.getenv('MASTER_ADDR')", "what it saw of MASTER_ADDR"),
}


@pytest.mark.parametrize("case", LEFT)
def test_a_module_that_leaves_something_is_left_out(tmp_path, case):
    source, what = LEFT[case]
    (tmp_path / "bad.py").write_text(source)
    (tmp_path / "w.py").write_text("import os, sys; os.write(1, b'RAN %r %r\\n' % ('bad' in sys.modules, 'json' in sys.modules))\n")
    code, text = run(tmp_path, "--nproc-per-node=2", "--warm=json,bad", "w.py")
    assert code == 0 and text.count("RAN False True") == 2, text
    assert re.search(f"importing bad leaves .*{what} behind", text), text
    assert ORDINARY not in text


def test_what_comes_later_is_seen_before_the_next_fork(tmp_path):
    """A socket that the interpreter has got since: that worker starts the ordinary way, and one line says why."""
    (tmp_path / "later.py").write_text(
        "import signal, socket\nkept = []\nsignal.signal(signal.SIGUSR1, lambda *_: kept.append(socket.socket()))\n")
    with job(tmp_path, "m", "--warm=later,json") as agent:
        agent.until(lambda text: text.count("UP 0") == 2)
        server = server_of(agent.pid)
        os.kill(server, signal.SIGUSR1)
        by = clock() + 30
        while len(fds_of(server, "socket:")) < 2:  # The guard's is one.
            assert clock() < by
            time.sleep(0.01)
        os.kill(below(agent.pid)["python"][0], signal.SIGKILL)
        agent.until(lambda text: text.count("UP 1") == 2)
        assert agent.text().count("the warm interpreter has an open socket; this worker starts the ordinary way") == 2
        assert agent.process.poll() is None


def fds_of(pid, start):
    out = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            out += [path.name] if os.readlink(path).startswith(start) else []
        except OSError:
            pass
    return out


def test_the_secret_stays_with_the_agents(tmp_path):
    (tmp_path / "looks.py").write_text("import os; print('SERVER', [k for k in os.environ if 'TOKEN' in k], flush=True)\n")
    (tmp_path / "w.py").write_text("import os; print('WORKER', [k for k in os.environ if 'TOKEN' in k], flush=True)\n")
    code, text = run(tmp_path, "--standalone", "--warm=looks", "w.py", env={"MUSTER_TOKEN": "x" * 40})
    assert code == 0 and "SERVER []" in text and "WORKER []" in text, text


def test_refusals_are_in_words(tmp_path):
    for words, why in ((["--warm", "--no-python", "true"], "--no-python"),
                       (["--warm=a/b", "x.py"], "'a/b' is not the name of a module"),
                       (["--warm=", "nosuch.py"], None)):
        code, text = run(tmp_path, *words)
        assert code != 0
        if why:
            assert why in text, text


def test_an_interpreter_that_ignores_pythonpath_never_runs_the_script(tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\nexec {VENV}/python -I \"$@\"\n")
    wrapper.chmod(0o755)
    (tmp_path / "w.py").write_text("import os; os.write(1, b'RAN %s\\n' % os.environb[b'RANK'])\n")
    code, text = run(tmp_path, "--nproc-per-node=2", "--warm=json", "w.py", env={"PYTHON_EXEC": str(wrapper)})
    assert code == 0 and text.count("RAN") == 2 and "does not run what PYTHONPATH offers" in text, text


def test_not_a_python(tmp_path):
    code, text = run(tmp_path, "--warm=json", "w.py", env={"PYTHON_EXEC": "/bin/echo"})
    assert code == 0 and ORDINARY in text, text


def test_no_memory_for_the_server(tmp_path):
    (tmp_path / "w.py").write_text("print('RAN', flush=True)\n")
    wrapper = tmp_path / "python"  # enough to start, not enough to import torch
    wrapper.write_text(f"#!/bin/sh\nulimit -v 200000\nexec {VENV}/python \"$@\"\n")
    wrapper.chmod(0o755)
    code, text = run(tmp_path, "--warm", "w.py", env={"PYTHON_EXEC": str(wrapper)})
    assert code == 0 and "RAN" in text and ORDINARY in text, text


def group_with_memory(mb):
    """A control group that may use so much, below ours; None where we may not make one."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            where, name = Path(f"/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"
        elif number == "0" and not controllers:
            where, name = Path(f"/sys/fs/cgroup{path}"), "memory.max"
        else:
            continue
        group = where / f"muster-warm-{os.getpid()}-{time.monotonic_ns()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            with (group / name).open("r+") as f:  # It must be there: this may be an ordinary directory.
                f.write(str(mb << 20))
            return group
        except OSError:
            group.rmdir()
    return None


def test_what_the_server_may_hold_is_bounded(tmp_path):
    """By half of what the job's control group may use; and what it holds is told."""
    group = group_with_memory(400)
    if group is None:
        pytest.skip("no control group can be made here")
    (tmp_path / "big.py").write_text("held = bytearray(b'x') * (250 << 20)\n")
    (tmp_path / "w.py").write_text("print('RAN', flush=True)\n")
    try:
        for modules, why in (("json,big", "big takes more than 200 MB; workers start the ordinary way"),
                             ("json", r"the warm interpreter is ready after .* it holds \d+ MB and \d+ modules")):
            done = subprocess.run(["sh", "-c", f"echo $$ >{group}/cgroup.procs && exec \"$@\"", "sh", MUSTER, "run",
                                   f"--warm={modules}", "w.py"], cwd=tmp_path, text=True, timeout=100,
                                  capture_output=True, env=environment(LOGLEVEL="INFO"))
            assert done.returncode == 0 and "RAN" in done.stdout, done.stderr
            assert re.search(why, done.stderr), done.stderr
    finally:
        by = clock() + 20
        while group.exists():
            try:
                group.rmdir()
            except OSError:  # The last of its processes is about to end.
                assert clock() < by
                time.sleep(0.05)


VERSIONS = sorted(Path.home().glob(".pyenv/versions/*/bin/python"))


@pytest.mark.parametrize("python", VERSIONS, ids=lambda p: p.parts[-3])
def test_other_versions_of_python(tmp_path, python):
    """Whichever the workers have; those that are too old start the ordinary way."""
    (tmp_path / "w.py").write_text("import sys\nsys.stdout.write('RAN %s\\n' % ('json' in sys.modules))\n")
    code, text = run(tmp_path, "--warm=json", "w.py", env={"PYTHON_EXEC": str(python)})
    version = tuple(int(n) for n in python.parts[-3].split(".")[:2])
    assert code == 0, text
    if version < (3, 8):
        assert "is too old; workers start the ordinary way" in text and "RAN False" in text, text
    else:
        assert text == "RAN True\n"


def test_without_torch_the_default_is_quiet_about_it(tmp_path):
    (tmp_path / "w.py").write_text("print('RAN', flush=True)\n")
    code, text = run(tmp_path, "--warm", "w.py", env={"PYTHON_EXEC": bare_python()})
    assert code == 0 and "RAN" in text and "Traceback" not in text, text
    assert "there is no torch to import here; workers start the ordinary way" in text


# --- auto ---------------------------------------------------------------------------------


def test_auto_learns_what_the_script_imports(tmp_path):
    (tmp_path / "w.py").write_text(
        "import sys, time\nprint('HAD', 'mine' in sys.modules, flush=True)\nimport mine.part\n"
        "try: import nosuch\nexcept ImportError: pass\ntime.sleep(0.3)\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").touch()
    (tmp_path / "mine/part.py").touch()
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1",
           "PYTHON_EXEC": bare_python()}  # which has no torch
    _, first = run(tmp_path, "--warm=auto", "w.py", env=env)
    kept = list((tmp_path / "cache/muster").iterdir())
    assert len(kept) == 1 and {"mine", "mine.part"} <= set(kept[0].read_text().split())
    _, second = run(tmp_path, "--warm=auto", "w.py", env=env)
    (tmp_path / "mine/part.py").write_text("import os; rank = os.environ.get('RANK')\n")
    _, third = run(tmp_path, "--warm=auto", "w.py", env=env)
    assert "importing mine.part leaves" in third and "HAD True" in third
    _, fourth = run(tmp_path, "--warm=auto", "w.py", env=env)
    assert "leaves" not in fourth and "HAD True" in fourth
    assert "HAD False" in first and "HAD True" in second and ORDINARY not in second, first + second


def test_auto_goes_on_learning(tmp_path):
    """A script may change. What it imports and the interpreter cannot (it raises, or ends the process) is left out for good,
    and costs none of the later starts anything."""
    (tmp_path / "w.py").write_text(
        "import sys\nprint('HAD', 'good' in sys.modules, 'more' in sys.modules, flush=True)\nimport good\n"
        "try: import broken\nexcept ValueError: pass\nsys.mine = 1\nimport hard\nif len(sys.argv) > 1: import more\n")
    for name, source in (("good", ""), ("more", ""), ("broken", "raise ValueError('x')"),
                         ("hard", "import os, sys\nif not hasattr(sys, 'mine'): os._exit(5)")):
        (tmp_path / f"{name}.py").write_text(source)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHON_EXEC": bare_python()}  # without torch
    said = []
    for words in ((), (), (), ("x",), ("x",)):
        code, text = run(tmp_path, "--warm=auto", "w.py", *words, env=env)
        assert code == 0 and ORDINARY not in text, text
        said.append(text)
    assert "HAD False False" in said[0]
    assert "the module broken does not import (ValueError: x); it is left out" in said[1], said[1]
    assert "exit code 5 while it imported hard" in said[1], said[1]
    assert said[2:] == ["HAD True False\n", "HAD True False\n", "HAD True True\n"]


PLAIN = os.path.realpath(VENV / "python")  # which has no torch


def write(where, **files):
    for name, source in files.items():
        path = where / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)


def test_auto_finds_a_library_with_a_thread_once(tmp_path):
    """Not once for each of its modules, nor for all that need it; what was imported before it stays warm."""
    write(tmp_path, lib__core="import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
          lib__init="", good="", more="", **{f"lib__m{i}": "" for i in range(10)}, uses="import lib.m1", needs="import lib")
    (tmp_path / "lib/__init__.py").write_text("import lib.core, lib.init\n")
    names = ["good", *(f"lib.m{i}" for i in range(10)), "uses", "needs", "more"]
    (tmp_path / "w.py").write_text(
        f"import os, sys\nHAD = [n for n in {names} if n in sys.modules]\nfor n in {names}: __import__(n)\n"
        "print('HAD', *HAD, flush=True)\nos._exit(0)\n")
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHON_EXEC": PLAIN}
    said = []
    for _ in range(5):
        code, text = run(tmp_path, "--warm=auto", "w.py", env=env)
        assert code == 0 and ORDINARY not in text and text.count("left out") <= 1, text
        said.append(text)
    assert said[0] == "HAD\n"
    assert "importing lib leaves 1 more thread behind" in said[1] and "HAD good\n" in said[1], said[1]
    assert "uses imports lib, which must not be imported ahead of this script" in said[2], said[2]
    assert said[4] == "HAD good more\n"


def test_workers_do_not_wait_long_for_modules_to_be_left_out(tmp_path):
    """The interpreter that begins again is held up here for as long as the test wants; the workers are not."""
    write(tmp_path, first="""
import os, time
if open("/proc/self/comm").read().strip() == "muster-warm":
    if os.path.exists("begun"):
        while not os.path.exists("go"): time.sleep(0.01)
    open("begun", "w").close()
""", bad="import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()")
    (tmp_path / "w.py").write_text("import os, first, bad\nprint('RAN', flush=True)\nos._exit(0)\n")
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHON_EXEC": PLAIN}
    code, text = run(tmp_path, "--warm=auto", "w.py", env=env)
    assert (code, text) == (0, "RAN\n")
    code, text = run(tmp_path, "--nproc-per-node=2", "--warm=auto", "w.py", env=env)
    assert code == 0 and text.count("RAN") == 2, text
    assert text.count("left out have cost 5 s; these workers start the ordinary way") == 1 and "another one" not in text, text


def test_a_variable_that_comes_too_late_is_told(tmp_path):
    """In one line, by one of the workers, if they would have seen another value without --warm."""
    write(tmp_path, conf="import os; home = os.environ.get('MY_HOME', 'default')", over="import conf")
    (tmp_path / "w.py").write_text(
        "import os, sys\nif len(sys.argv) > 1: import over\nfor _ in 'twice': os.environ['MY_HOME'] = '/mine'\nimport conf\n"
        "print('SAW', conf.home, flush=True)\n")
    line = "muster: --warm: MY_HOME is set after conf, which reads it, was imported; there it has no effect."
    for words, env, times in (((), {}, 1), ((), {"MY_HOME": "/mine"}, 0), (("x",), {}, 0)):
        code, text = run(tmp_path, "--nproc-per-node=2", "--warm=over", "w.py", *words, env=env)
        assert code == 0 and text.count(line) == times, text
        assert text.count("SAW default" if not env else "SAW /mine") == 2, text
    code, text = run(tmp_path, "w.py")
    assert (code, text) == (0, "SAW /mine\n")


def test_auto_learns_which_variables_a_script_sets(tmp_path):
    """Before an import that reads one: at once. After an edit: with the line, and from the next start on. What needs such a
    module is not imported ahead either."""
    write(tmp_path, conf="import os; home = os.environ.get('MY_HOME', 'default')", uses="import conf", also="import conf",
          good="")
    script = "import os, sys\nHAD = [n for n in ('good', 'conf', 'uses', 'also') if n in sys.modules]\n%simport good, uses, conf, also\n" \
             "print('SAW', conf.home, *HAD, flush=True)\n"
    sets = script % "os.environ['MY_HOME'] = '/mine'\n"

    def start(cache):
        code, text = run(tmp_path, "--warm=auto", "w.py", env={"XDG_CACHE_HOME": str(tmp_path / cache), "PYTHON_EXEC": PLAIN})
        assert code == 0 and ORDINARY not in text, text
        return text
    (tmp_path / "w.py").write_text(sets)
    assert start("a") == "SAW /mine\n"
    second = start("a")
    assert "also imports conf, which must not be imported ahead" in second and second.endswith("SAW /mine good\n"), second
    assert start("a") == "SAW /mine good\n"

    (tmp_path / "w.py").write_text(script % "")
    assert start("b") == "SAW default\n"
    assert start("b") == "SAW default good conf uses also\n"
    (tmp_path / "w.py").write_text(sets)
    late = start("b")
    assert "MY_HOME is set after conf" in late and "SAW default good conf uses also\n" in late, late
    assert start("b").endswith("SAW /mine good\n")
    assert start("b") == "SAW /mine good\n"


def test_a_node_that_comes_back_does_not_wait_for_its_interpreter(tmp_path):
    """Its agent was killed, and the others wait for it: its workers import for themselves. Here its interpreter would never
    have been ready."""
    write(tmp_path, slow="""
import os, time
while not os.path.exists("go"): time.sleep(0.01)
""")
    (tmp_path / "w.py").write_text(
        "import os, sys, time\nos.write(1, f\"UP {os.environ['WORLD_SIZE']} {'slow' in sys.modules}\\n\".encode())\ntime.sleep(1000)\n")
    (tmp_path / "go").touch()
    words = ["--nnodes=2", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=back", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
             "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3", "--warm=slow", "w.py"]
    with Job(tmp_path, "a", *words, env={"PYTHON_EXEC": PLAIN}) as a:
        with Job(tmp_path, "b", *words, env={"PYTHON_EXEC": PLAIN}) as b:
            a.until("UP 2 True")
            b.until("UP 2 True")
            (tmp_path / "go").unlink()
            b.process.kill()
            b.wait()
        with Job(tmp_path, "c", *words, env={"PYTHON_EXEC": PLAIN}) as c:
            c.until("UP 2 False")
            a.until(lambda text: text.count("UP 2 True") == 2)


def test_what_was_learned_survives_a_killed_agent(tmp_path):
    (tmp_path / "mine.py").touch()
    (tmp_path / "w.py").write_text("import mine, time\nprint('UP', flush=True)\ntime.sleep(1000)\n")
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHON_EXEC": bare_python()}
    with Job(tmp_path, "m", "--warm=auto", "w.py", env=env) as agent:
        by = clock() + 60
        while not any("mine" in p.read_text().split() for p in (tmp_path / "cache").glob("muster/warm-*") if not p.suffix):
            assert clock() < by and agent.process.poll() is None, agent.text()
            time.sleep(0.05)
        agent.process.kill()
        agent.wait()


def test_a_learner_without_a_listener_does_no_harm(tmp_path):
    """The interpreter is gone, the worker imports on, and SIGPIPE is not ignored."""
    (tmp_path / "mine.py").touch()
    (tmp_path / "w.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nprint('UP', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\nimport mine, wave, smtplib\nprint('RAN', flush=True)\n")
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHON_EXEC": bare_python()}
    with Job(tmp_path, "m", "--warm=auto", "w.py", env=env) as agent:
        agent.until("UP")
        os.kill(server_of(agent.pid), signal.SIGKILL)
        agent.until("another one takes its place")
        (tmp_path / "go").touch()
        assert agent.wait() == 0 and "RAN" in agent.text(), agent.text()


# --- kills --------------------------------------------------------------------------------

SLOW = """
import os, sys, time, json
os.write(1, f"UP {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n".encode())
time.sleep(1000)
"""


def job(where, mark, *words):
    (where / "w.py").write_text(SLOW)
    return Job(where, mark, "--standalone", "--nproc-per-node=2", "--max-restarts=100", *words, "w.py", mark,
               env={"MARK": mark})


def test_a_killed_server_is_replaced_and_costs_no_attempt(tmp_path):
    with job(tmp_path, "m", "--warm=json") as agent:
        agent.until(lambda text: text.count("UP 0") == 2)
        for i in range(3):
            server = server_of(agent.pid)
            os.kill(server, signal.SIGKILL)
            agent.until(lambda text: text.count("another one takes its place") == i + 1)
            while server_of(agent.pid) == server:
                time.sleep(0.01)
            workers = below(agent.pid)["python"]
            os.kill(workers[0], signal.SIGKILL)
            agent.until(lambda text: text.count(f"UP {i + 1}") == 2)
        assert ORDINARY not in agent.text()
        assert agent.process.poll() is None


def test_a_server_that_is_stopped_does_not_stop_the_job(tmp_path):
    """What it is asked for and does not do can still be ended; killed, it costs nothing."""
    with job(tmp_path, "m", "--warm=json") as agent:
        agent.until(lambda text: text.count("UP 0") == 2)
        server = server_of(agent.pid)
        os.kill(server, signal.SIGSTOP)
        os.kill(below(agent.pid)["python"][0], signal.SIGKILL)
        agent.until("failed (exitcode: -9)")
        time.sleep(0.3)
        os.kill(server, signal.SIGKILL)
        agent.until(lambda text: text.count("UP 1") == 2)
    with job(tmp_path, "n", "--warm=json") as agent:
        agent.until(lambda text: text.count("UP 0") == 2)
        os.kill(server_of(agent.pid), signal.SIGSTOP)
        os.kill(below(agent.pid)["python"][0], signal.SIGKILL)
        agent.until("failed (exitcode: -9)")
        time.sleep(0.3)
        agent.process.send_signal(signal.SIGTERM)
        assert agent.wait(20) == 1


@pytest.mark.parametrize("phase", ["importing", "running"])
def test_whoever_is_killed_nothing_is_left(tmp_path, phase):
    rng = random.Random(3)
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.3)\n")
    for i in range(12):
        mark = f"warm-{phase}-{os.getpid()}-{i}-{time.monotonic_ns()}"
        with job(tmp_path, mark, "--warm=slow,json" if phase == "importing" else "--warm=json") as agent:
            if phase == "running":
                agent.until(lambda text: text.count("UP 0") == 2)
            else:
                time.sleep(rng.uniform(0, 0.4))
            tree = below(agent.pid)
            victims = [agent.pid] + [p for name in tree for p in tree[name]]
            rng.shuffle(victims)
            for pid in [v for v in victims[: rng.randint(1, 4)]] + [agent.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                time.sleep(rng.choice((0, 0, 0.003)))
            agent.wait()
        until_gone(mark)
        by = clock() + 10
        while any(Path(f"/proc/{v}").exists() and "MARK" for v in victims if v in marked(mark)):
            assert clock() < by


def test_nothing_grows(tmp_path):
    """Restart after restart: descriptors and memory of server, guard and agent."""
    (tmp_path / "w.py").write_text("import sys, os; os.write(1, b'AT %s\\n' % os.environb[b'TORCHELASTIC_RESTART_COUNT'])\n"
                                   "sys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 150)\n")

    def sizes(pids):
        out = []
        for pid in pids:
            status = Path(f"/proc/{pid}/status").read_text()
            out.append((len(os.listdir(f"/proc/{pid}/fd")), int(re.search(r"VmRSS:\s+(\d+)", status)[1])))
        return out

    with Job(tmp_path, "grow", "--standalone", "--nproc-per-node=2", "--max-restarts=200", "--warm=json", "w.py") as agent:
        agent.until("AT 20\n")
        pids = [agent.pid, server_of(agent.pid), *below(agent.pid)["muster-guard"]]
        before = sizes(pids)
        agent.until("AT 120\n")
        after = sizes(pids)
        assert agent.wait() == 0
    for (fds, kb), (fds_now, kb_now) in zip(before, after):
        assert fds_now <= fds + 6 and kb_now < kb + 1500, (before, after)


def test_a_changed_source_is_used(tmp_path):
    (tmp_path / "helper.py").write_text("value = 1\n")
    (tmp_path / "w.py").write_text(
        "import helper, os, sys, time\nprint('VALUE', helper.value, flush=True)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    open('helper.py', 'w').write('value = 22\\n')\n    sys.exit(1)\n")
    code, text = run(tmp_path, "--max-restarts=1", "--warm=helper,json", "w.py", env={"LOGLEVEL": "INFO"})
    assert code == 0 and "VALUE 1\n" in text and "VALUE 22\n" in text, text
    assert "has changed" in text


def test_a_changed_package_is_noticed_after_a_fork(tmp_path):
    """Of packages there are thousands of files, so that they are looked at when there is nothing else to do."""
    (tmp_path / "my-packages").mkdir()
    (tmp_path / "my-packages/helper.py").write_text("value = 1\n")
    (tmp_path / "w.py").write_text(
        "import helper, os, sys, time\nprint('VALUE', helper.value, flush=True)\n"
        "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if attempt == 0: open('my-packages/helper.py', 'w').write('value = 22\\n')\n"
        "while attempt == 1 and not os.path.exists('go'): time.sleep(0.01)\nsys.exit(attempt < 2)\n")
    with Job(tmp_path, "m", "--max-restarts=2", "--warm=helper,json", "w.py",
             env={"LOGLEVEL": "INFO", "PYTHONPATH": "my-packages"}) as agent:
        agent.until("helper.py; the warm interpreter begins again")
        agent.until(lambda text: text.count("the warm interpreter is ready") == 2)
        (tmp_path / "go").touch()
        assert agent.wait() == 0 and ORDINARY not in agent.text(), agent.text()
    assert re.findall(r"^VALUE (\d+)$", agent.text(), re.M)[::2] == ["1", "22"], agent.text()


def test_an_interpreter_that_has_grown_is_replaced(tmp_path):
    (tmp_path / "later.py").write_text(
        "import signal\nkept = []\nsignal.signal(signal.SIGUSR1, lambda *_: kept.append(bytearray(b'x') * (150 << 20)))\n")
    (tmp_path / "w.py").write_text(SLOW)
    with Job(tmp_path, "m", "--standalone", "--max-restarts=9", "--warm=later", "w.py", env={"LOGLEVEL": "INFO"}) as agent:
        agent.until("UP 0")
        os.kill(server_of(agent.pid), signal.SIGUSR1)
        os.kill(below(agent.pid)["python"][0], signal.SIGKILL)  # It looks at itself after a fork.
        agent.until("the warm interpreter has grown (KB)")
        agent.until(lambda text: text.count("the warm interpreter is ready") == 2)
        agent.until("UP 1")
        os.kill(below(agent.pid)["python"][0], signal.SIGKILL)
        agent.until("UP 2")
        assert ORDINARY not in agent.text(), agent.text()


def test_memory_is_shared(tmp_path):
    (tmp_path / "w.py").write_text(
        "import torch, os\nrows = open('/proc/self/smaps_rollup').read().splitlines()\n"
        "print('PRIVATE', sum(int(r.split()[1]) for r in rows if r.startswith('Private')), flush=True)\n")
    _, cold = run(tmp_path, "w.py")
    _, warm = run(tmp_path, "--warm", "w.py")
    kb = [int(re.search(r"PRIVATE (\d+)", t)[1]) for t in (cold, warm)]
    assert kb[1] < kb[0] / 5, kb


def test_who_has_not_heard_of_it_is_told(tmp_path):
    """Once, after a restart whose workers took more than a second."""
    (tmp_path / "w.py").write_text(
        "import os, socket, sys, time\ntime.sleep(1.2)\ns = socket.socket()\ntime.sleep(0.6)\n"
        "sys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 2)\n")
    code, text = run(tmp_path, "--max-restarts=2", "w.py")
    assert code == 0 and text.count("--warm imports once") == 1, text
    assert re.search(r"the workers took 1\.[2-9] s from their start", text), text
    code, text = run(tmp_path, "--max-restarts=2", "--warm=json", "w.py")
    assert code == 0 and "imports once" not in text
