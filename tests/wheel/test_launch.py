"""muster.elastic_launch from the installed wheel: results, failures, interrupts."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from wheels import ROOT, clock, free_port, run

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

def leave(code):
    sys.exit(code)

def unpicklable():
    return lambda: None

class Picky:
    def __reduce__(self):
        return Picky.load, (os.getpid(),)
    def load(pid):
        if pid != os.getpid():
            raise RuntimeError("only at home")

def picky():
    return Picky()

def late(ready):
    # Rank 1 ends by itself, rank 0 by an exception when it is told to.
    if os.environ["RANK"] == "1":
        while not os.path.exists(ready):
            time.sleep(0.02)
        sys.exit(3)
    import signal
    def stop(*_):
        raise InterruptedError("told to stop")
    signal.signal(signal.SIGTERM, stop)
    open(ready, "w").close()
    time.sleep(100)

def again(x):
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 0 and os.environ["RANK"] == "1":
        raise RuntimeError("once")
    return attempt, x, "OMP_NUM_THREADS" in os.environ

class Torn:
    def __del__(self):
        os.write(1, b"torn down")

def leaves(what):
    import atexit, io, threading
    globals()["kept"] = Torn()
    done = threading.Event()
    def late():
        done.wait(0.2)
        os.write(1, b"thread\\n")
    threading.Thread(target=late).start()
    atexit.register(os.write, 1, b"exit function\\n")
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False))
    sys.stdout.write("no newline")
    if what:
        raise ValueError("at the end")

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


def test_a_partial_has_the_name_of_what_it_calls(venv: Path, tmp_path: Path) -> None:
    done = script(venv, tmp_path, """
import functools
print(muster.elastic_launch(config(1), functools.partial(functools.partial(times), 10))())
try:
    muster.elastic_launch(config(1), functools.partial(fail, 0))()
except muster.ChildFailedError as e:
    print(str(e).splitlines()[0])
""")
    result, failed = done.stdout.splitlines()
    assert result == "{0: (0, '1')}" and failed.startswith("fail FAILED"), done.stdout


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
    v = e.verdict
    print("verdict", v.cause, v.text, v.rank, v.local_rank, v.exitcode, "in fail" in v.place, v.pid == first.pid, bool(v.host))
    print("report", e.report["outcome"], e.report["rounds"][0]["ranks"], abs(time.time() - v.timestamp) < 3600)
""")
    assert "the whole story" not in done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "verdict exception KeyError: 'the reason' 2 2 1 True True True", "report failed 4 True"]
    done.stdout = "\n".join(done.stdout.splitlines()[:-2])
    assert "FAILED" not in done.stderr and "the job failed" not in done.stderr, done.stderr  # It is raised.
    assert done.stdout.splitlines()[-3:] == [
        "rank 2 local 2 exit 1 name fail", "traceback True True", "all [0, 1, 2, 3] True"]


def test_a_failure_that_nobody_catches_is_told_once(venv: Path, tmp_path: Path) -> None:
    done = script(venv, tmp_path, "muster.elastic_launch(config(2), fail)(1)", ok=False)
    assert done.returncode == 1
    assert done.stderr.count("FAILED") == done.stderr.count("job failed") == 1, done.stderr
    assert re.search(r"^The job failed: rank 1 on \S+: KeyError: 'the reason' \(.*in fail", done.stderr, re.M), done.stderr


def test_arguments_may_have_names(venv: Path, tmp_path: Path) -> None:
    done = script(venv, tmp_path, """
print(muster.elastic_launch(config(2), times)(x=10))
try:
    muster.elastic_launch(config(1), 'echo')(x=10)
except TypeError as e:
    print(e)
""")
    assert done.stdout == "{0: (0, '2'), 1: (10, '2')}\na command has no arguments with names\n"


def test_help_opens_with_an_example_that_works(venv: Path, tmp_path: Path) -> None:
    """And the checker knows arguments and results by the function."""
    text = run(venv / "bin/python", "-c", "import muster; print(muster.__doc__)").stdout
    example = textwrap.dedent(text.strip().split("\n\n", 1)[1].rsplit("\n\n", 1)[0])
    (tmp_path / "example.py").write_text(example)
    assert run(venv / "bin/python", tmp_path / "example.py").stdout == "{0: 0, 1: 10, 2: 20, 3: 30}\n"
    (tmp_path / "typed.py").write_text("""
import muster
def work(x: int, name: str = "") -> float: return float(x)
launch = muster.elastic_launch(muster.LaunchConfig(1, 1, 1), work)
reveal_type(launch(1, name="x")[0])
reveal_type(muster.elastic_launch(muster.LaunchConfig(1, 1, 1), "echo")("hi")[0])
launch("no")
""")
    done = run(ROOT / "build/wheelvenv/bin/python", "-m", "mypy", "typed.py", cwd=tmp_path, ok=False,
               env={**os.environ, "MYPYPATH": str(ROOT / "python/src")})
    assert 'type is "float"' in done.stdout and 'type is "None"' in done.stdout, done.stdout
    assert 'typed.py:7: error: Argument 1 to "__call__" of "elastic_launch" has incompatible type "str"' in done.stdout
    assert "Found 1 error" in done.stdout, done.stdout


def test_the_first_failure_is_the_cause_whatever_the_others_wrote(venv, tmp_path: Path) -> None:
    done = script(venv, tmp_path, """
logs = muster.LogsSpecs(log_dir=sys.argv[1])
try:
    muster.elastic_launch(config(2, logs_specs=logs), late)(sys.argv[2])
except muster.ChildFailedError as e:
    rank, first = e.get_first_failure()
    print(rank, first.exitcode, first.error_file, "no traceback" in first.message)
    other = e.failures[0]
    print(other.exitcode, os.path.exists(other.error_file), other.message.splitlines()[-1])
    print(other.error_file_data["message"]["message"], abs(time.time() - other.timestamp) < 3600)
""", tmp_path / "logs", tmp_path / "ready")
    assert done.stdout.splitlines() == [
        "1 3 <N/A> True", "1 True InterruptedError: told to stop",
        "InterruptedError: told to stop True"]


def test_a_restart_counts_only_with_its_last_attempt(venv: Path, tmp_path: Path) -> None:
    done = script(venv, tmp_path, "c = config(2); c.max_restarts = 1\n"
                  "r = muster.elastic_launch(c, again)('x'); print(r, r.restarts)")
    assert done.stdout == "{0: (1, 'x', False), 1: (1, 'x', False)} 1\n"


def test_two_nodes_each_have_the_results_of_their_workers(venv: Path, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + """
if __name__ == "__main__":
    c = muster.LaunchConfig(2, 2, 2, run_id="job", rdzv_backend="c10d", max_restarts=0,
                            rdzv_endpoint="127.0.0.1:" + sys.argv[1], local_addr="127.0.0.1")
    print(muster.elastic_launch(c, times)(10))
""")
    port = free_port()
    nodes = [subprocess.Popen([venv / "bin/python", path, str(port)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    out = [n.communicate(timeout=100) for n in nodes]
    assert sorted(o for o, _ in out) == ["{0: (0, '4'), 1: (10, '4')}\n",
                                         "{2: (20, '4'), 3: (30, '4')}\n"], out


def test_a_run_id_is_made_up_as_torch_does(venv: Path, tmp_path: Path) -> None:
    """More than one node may take part, and nobody has said under which name: PyTorch's own
    tests of its launcher do so."""
    done = script(venv, tmp_path, """
made = muster.LaunchConfig(1, 2, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
                           rdzv_configs={"last_call_timeout": 1})
print(muster.elastic_launch(made, times)(10))
assert "--rdzv-endpoint=" in muster.LaunchConfig(1, 2, 2, rdzv_backend="c10d")._options()
""")
    assert done.stdout == "{0: (0, '2'), 1: (10, '2')}\n"
    assert "config has no run_id, generated a random run_id: " in done.stderr


def test_what_a_function_leaves_for_the_end_is_done(venv: Path, tmp_path: Path) -> None:
    """Threads, exit functions and streams are seen to; the interpreter is not taken down,
    as native threads that want its lock would abort the process."""
    done = script(venv, tmp_path, """
for what in (None, "raise"):
    try:
        muster.elastic_launch(config(1, logs_specs=muster.LogsSpecs(sys.argv[1], 1)), leaves)(what)
    except muster.ChildFailedError as e:
        print(e.failures[0].exitcode, "ValueError: at the end" in e.failures[0].message)
""", tmp_path / "logs")
    assert done.stdout == "1 True\n"
    wrote = [p.read_text() for p in (tmp_path / "logs").rglob("stdout.log")]
    assert wrote == 2 * ["thread\nexit function\nno newline"], wrote
    assert "ValueError: at the end" in done.stderr


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
    ("muster.elastic_launch(config(1), picky)()", "LaunchError",
     "the result of rank 0 cannot be loaded here: RuntimeError: only at home"),
    ("muster.elastic_launch(config(1), vanish)()", "LaunchError", "left no result"),
    ("muster.elastic_launch(config(1), leave)(0)", "LaunchError", "left no result"),
    ("muster.elastic_launch(config(1), leave)(3)", "ChildFailedError", "exit code 3"),
    ("muster.elastic_launch(config(0), times)(1)", "ValueError", "must be at least 1"),
    ("muster.elastic_launch(muster.LaunchConfig(0, 1, 1), times)(1)", "ValueError",
     "The minimum number of rendezvous nodes (0) must be greater than zero."),
    ("muster.elastic_launch(muster.LaunchConfig(2, 1, 1), times)(1)", "ValueError",
     "must be greater than or equal to the minimum number of rendezvous nodes (2)."),
    ("muster.elastic_launch(config(1, event_log_handler='smoke'), times)(1)", "ValueError",
     "neither 'null' nor 'console'"),
    ("muster.elastic_launch(config(1, logs_specs=7), times)(1)", "TypeError",
     "logs_specs: int has no log_dir; use muster.LogsSpecs"),
    ("muster.elastic_launch(config(1), '/no/such/program')()", "LaunchError",
     "/no/such/program"),
    ("muster.elastic_launch(config(1, rdzv_backend='smoke'), times)(1)", "LaunchError",
     "the launcher ended with exit code 1"),
    ("muster.elastic_launch(muster.LaunchConfig(2, 2, 1, run_id='x', rdzv_backend='c10d',"
     " rdzv_endpoint='localhost:0', rdzv_configs={'join_timeout': 1}), times)(1)",
     "LaunchError", "ended with exit code 1: "),
    ("muster.elastic_launch(config(1, start_method='fork'), times)(1)", "ValueError", "spawn"),
    ("muster.elastic_launch(config(1), 7)", "TypeError", "function, or a command"),
    ("muster.elastic_launch(config(1, rdzv_backend='c10d', rdzv_configs={'a': '1,2'}), times)(1)",
     "ValueError", "comma"),
])
def test_bad_input(venv: Path, tmp_path: Path, body: str, kind: str, says: str) -> None:
    done = script(venv, tmp_path, body, ok=False)
    assert done.returncode == 1
    assert kind in done.stderr and says in done.stderr


@pytest.mark.parametrize("how, what", [("-c", "f"), ("-", "f"), ("-", "functools.partial(f)")])
def test_a_function_of_the_prompt_cannot_be_sent(venv: Path, how: str, what: str) -> None:
    code = ("import functools, muster\ndef f(): pass\n"
            f"muster.elastic_launch(muster.LaunchConfig(1, 1, 1), {what})()")
    done = (run(venv / "bin/python", "-c", code, ok=False) if how == "-c" else
            run(venv / "bin/python", "-", input=code, ok=False))
    assert done.stderr.splitlines()[-1] == (
        "TypeError: 'f' was defined at a prompt, in a notebook or in a script read from "
        "standard input, where no other process can find it: put it into a module and "
        "import it from there")


def test_a_script_on_standard_input_may_launch_what_others_can_import(venv: Path) -> None:
    code = ("import muster, os\n"
            "print(muster.elastic_launch(muster.LaunchConfig(1, 1, 2), os.getenv)('RANK'))")
    assert run(venv / "bin/python", "-", input=code).stdout == "{0: '0', 1: '1'}\n"


def test_torchs_except_catches_it(env, tmp_path: Path) -> None:
    """Where a program has imported torch's ChildFailedError, ours is one of them."""
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + """
if __name__ == "__main__":
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    try:
        muster.elastic_launch(config(1), leave)(3)
    except ChildFailedError as e:
        rank, first = e.get_first_failure()
        print(isinstance(e, muster.ChildFailedError), e.name, rank, first.exitcode)
""")
    assert run(sys.executable, path, env=env).stdout == "True leave 0 3\n"


@pytest.mark.parametrize("document", ["docs/guides/python.md", "python/README.md"])
def test_the_example_does_what_the_documents_say(venv: Path, tmp_path, document: str) -> None:
    text = (ROOT / document).read_text()
    (block,) = re.findall(r"^( *)(import .*?elastic_launch\(.*?\n)(?=```|\n(?! ))", text, re.M | re.S)
    example = tmp_path / "example.py"
    example.write_text(textwrap.dedent("".join(block)))
    said = re.search(r"# (\{0: .*\})", example.read_text())[1]
    assert run(venv / "bin/python", example).stdout == said + "\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_parent_ends(venv: Path, tmp_path: Path, number: int) -> None:
    """Ctrl-C, and the worst case."""
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + "\nif __name__ == '__main__':\n"
                    f"    muster.elastic_launch(config(2), wait)({str(tmp_path)!r})\n")
    parent = subprocess.Popen([venv / "bin/python", path], stderr=subprocess.PIPE, text=True)
    pids = [tmp_path / "pid.0", tmp_path / "pid.1"]
    deadline = clock() + 60
    while not all(p.exists() and p.read_text() for p in pids):
        assert clock() < deadline and parent.poll() is None
        time.sleep(0.02)
    workers = [int(p.read_text()) for p in pids]
    parent.send_signal(number)
    said = parent.communicate(timeout=60)[1]
    if number == signal.SIGINT:
        assert said.rstrip().endswith("KeyboardInterrupt")
    while any(os.path.exists(f"/proc/{pid}") for pid in workers):
        assert clock() < deadline
        time.sleep(0.02)
