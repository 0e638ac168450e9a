"""A warm worker is in every respect one that `python script` would be: both are run, and
what they see of themselves is compared."""
import json
import os
import pty
import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
from run_job import MUSTER, VENV, environment, run  # noqa: E402

HERE = Path(__file__).resolve().parent
PROBE = HERE / "probe.py"

# What differs from one start of a plain worker to the next, too.
VOLATILE = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "PROBE_OUT", "_"}


def cleaned(value, out):
    """Without what two plain workers would not have in common either."""
    if isinstance(value, dict):
        return {k: cleaned(v, out) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [cleaned(v, out) for v in value if not (isinstance(v, str) and v.split("=")[0] in VOLATILE)]
    return value.replace(out, "OUT") if isinstance(value, str) else value


def sorted_environ(facts):
    for key in ("environ_order", "proc_environ", "c_environ"):
        facts[key] = sorted(facts[key])
    return facts


def facts(where, name, *words, env=None, warm=None, count=1):
    out = where / name
    more = dict(env or {}, PROBE_OUT=str(out))
    if warm:
        words = (f"--warm={warm}", *words)
    code, text = run(where, f"--nproc-per-node={count}", *words, env=more)
    assert code == 0, text
    assert "ordinary way" not in text, text
    return [cleaned(json.loads(Path(f"{out}.{r}").read_text()), str(out)) for r in range(count)], text


WRAPPER = """#!/bin/sh
export WRAPPED=yes PATH=/wrapped:$PATH
unset UNWANTED
exec %s "$@"
"""

SURROUNDINGS = """#!/bin/sh
umask 027; ulimit -c 0; ulimit -n 700; trap '' USR1 PIPE; cd sub
exec nice -n 3 %s -O -X importtime=0 -X dev -W default::BytesWarning -bb "$@"
"""

CASES = {
    "surroundings": ([PROBE, "x"], {"PYTHON_EXEC": "./surroundings"}),
    "wrapper": ([PROBE], {"UNWANTED": "x", "PYTHON_EXEC": "./wrapper"}),
    "script": ([PROBE, "a", "b c"], {}),
    "relative": (["sub/link.py"], {}),
    "module": (["-m", "package.probe", "x"], {}),
    "package": (["-m", "package"], {}),
    "directory": (["folder"], {}),
    "zip": (["folder.zip"], {}),
    "run-path": (["--run-path", PROBE, "a"], {}),
    "no-threads": ([PROBE], {"OMP_NUM_THREADS": ""}),
    "three-threads": ([PROBE], {"OMP_NUM_THREADS": "3"}),
    "python-variables": ([PROBE], {"PYTHONOPTIMIZE": "1", "PYTHONWARNINGS": "error::UserWarning", "PYTHONDEVMODE": "1",
                                   "PYTHONIOENCODING": "latin-1:replace", "PYTHONFAULTHANDLER": "1"}),
    "pythonpath": ([PROBE], {"PYTHONPATH": "/usr/share:/tmp"}),
    "empty-pythonpath": ([PROBE], {"PYTHONPATH": ""}),
    "locale": ([PROBE], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "utf8": ([PROBE, "h\u00e4h"], {"LC_ALL": "C.UTF-8", "NAME": "\u00e9"}),
    "logs": (["--redirects=3", "--log-dir=logs", PROBE], {}),
    "tee": (["--tee=3", PROBE], {}),
    "local-rank-in-arguments": ([PROBE, "--device=${local_rank}", "x" * 300 + "${local_rank}"], {}),
    "safe-path": ([PROBE], {"PYTHONSAFEPATH": "1"}),
    "sitecustomize": ([PROBE], {"PYTHONPATH": "custom"}),
    "broken-sitecustomize": ([PROBE], {"PYTHONPATH": "broken"}),
}


@pytest.fixture()
def where(tmp_path):
    import zipfile
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/link.py").symlink_to(PROBE)
    for name in ("package", "folder", "custom", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "package/__init__.py").touch()
    for path in ("package/probe.py", "package/__main__.py", "folder/__main__.py"):
        (tmp_path / path).write_text(PROBE.read_text())
    with zipfile.ZipFile(tmp_path / "folder.zip", "w") as z:
        z.writestr("__main__.py", PROBE.read_text())
    (tmp_path / "wrapper").write_text(WRAPPER % (VENV / "python"))
    (tmp_path / "wrapper").chmod(0o755)
    (tmp_path / "surroundings").write_text(SURROUNDINGS % (VENV / "python"))
    (tmp_path / "surroundings").chmod(0o755)
    (tmp_path / "custom/sitecustomize.py").write_text("import sys; sys.custom = 1\n")
    (tmp_path / "broken/sitecustomize.py").write_text("raise ValueError('of the user')\n")
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_sees_the_same(where, case):
    words, env = CASES[case]
    words = [str(w) for w in words]
    count = 2 if "local-rank" in case else 1
    (plain, said), (warm, warm_said) = [
        facts(where, name, *words, env=env, warm=how, count=count) for name, how in (("plain", None), ("warm", "json"))]
    for a, b in zip(plain, warm):
        if case in ("run-path", "wrapper", "surroundings"):  # shells pass variables on in an order of their own
            a, b = sorted_environ(a), sorted_environ(b)
        assert set(a) == set(b)
        for key in a:
            assert a[key] == b[key], key
    assert ("Error in sitecustomize" in said) == ("Error in sitecustomize" in warm_said) == (case == "broken-sitecustomize")


@pytest.mark.parametrize("threads", ["1", "2", ""])
def test_sees_the_same_with_torch(where, threads):
    env = {"OMP_NUM_THREADS": threads, "PROBE_IMPORTS": "torch,torch._dynamo"}
    (plain, _), (warm, _) = facts(where, "plain", PROBE, env=env), facts(where, "warm", PROBE, env=env, warm="torch,torch._dynamo")
    for key in plain[0]:
        if key == "masks":  # a thread of OpenBLAS, of which the server has none
            plain[0][key].pop("Threads"), warm[0][key].pop("Threads")
        assert plain[0][key] == warm[0][key], key


def at_terminal(where, *words, env):
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(where)
        os.execve(MUSTER, ["muster", "run", *words], environment(**env))
    text = b""
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:
            break
        if not more:
            break
        text += more
    assert os.waitpid(pid, 0)[1] == 0, text
    return text


def test_at_a_terminal(where):
    """Without -u streams would depend on it; stdin does anyhow."""
    got = []
    for name, words in (("plain", []), ("warm", ["--warm=json"])):
        out = where / name
        at_terminal(where, *words, str(PROBE), env={"PROBE_OUT": str(out)})
        got.append(cleaned(json.loads(Path(f"{out}.0").read_text()), str(out)))
    assert got[0]["streams"][0]["isatty"] and got[0] == got[1]


ENDS = {
    "exception": ("def f():\n    raise RuntimeError('x')\nf()\n", 1),
    "exit": ("import sys; sys.exit(7)\n", 7),
    "text-exit": ("import sys; sys.exit('said')\n", 1),
    "os-exit": ("import os; os._exit(9)\n", 9),
    "signal": ("import os; os.kill(os.getpid(), 9)\n", -9),
    "abort": ("import os; os.abort()\n", -6),
    "atexit": ("import atexit\natexit.register(print, 'at exit')\nprint('end', end='')\n", 0),
    "syntax": ("def f(:\n", 1),
    "missing": (None, 2),
    "segfault": ("import faulthandler; faulthandler.enable(); faulthandler._sigsegv()\n", -11),
    "unraisable": ("class A:\n    def __del__(self): raise ValueError('d')\na = A()\ndel a\n", 0),
    "warning": ("import warnings; warnings.warn('w')\nimport logging; logging.warning('logged')\n", 0),
    "thread": ("import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start(); t.join()\n", 0),
    "stack": ("import traceback\ntraceback.print_stack()\nfaulthandler = __import__('faulthandler')\n"
              "faulthandler.dump_traceback(all_threads=True)\n", 0),
    "print": ("print('a'); import sys; print('b', file=sys.stderr); sys.stdout.write('c')\nimport os; os.write(1, b'd')\n", 0),
    "input": ("print(repr(input()), flush=True)\n", 1),
}


@pytest.mark.parametrize("end", ENDS)
def test_ends_the_same(tmp_path, end):
    """Exit code, and what it prints: tracebacks without a frame of ours."""
    source, code = ENDS[end]
    if source is not None:
        (tmp_path / "end.py").write_text(source)
    got = []
    for words in ([], ["--warm=json"]):
        _, text = run(tmp_path, "--redirects=3", "--log-dir=logs", *words, "end.py")
        assert "ordinary way" not in text
        logs = sorted((tmp_path / "logs").rglob("std*.log"))
        got.append([re.sub(r"0x[0-9a-f]+|\d{5,}", "N", p.read_text()) for p in logs] +
                   [int(m) for m in re.findall(r"exitcode +: (-?\d+)", text)][:1])
        shutil.rmtree(tmp_path / "logs")
    assert got[0] == got[1]
    assert got[1][2:] == ([code] if code else [])


def test_an_exception_is_recorded_the_same(tmp_path):
    """torch's @record: what it writes into the error file, and what the launcher makes of it."""
    (tmp_path / "r.py").write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main():\n"
        "    raise RuntimeError('of the user')\nif __name__ == '__main__':\n    main()\n")
    got = []
    for words in ([], ["--warm"]):
        where = tmp_path / f"logs{len(got)}"
        code, text = run(tmp_path, "--redirects=3", f"--log-dir={where}", *words, "r.py")
        assert code == 1 and "ordinary way" not in text, text
        error = json.loads(next(where.rglob("error.json")).read_text())["message"]
        error["extraInfo"].pop("timestamp")
        assert "of the user" in text
        got.append(error)
    assert got[0] == got[1] and "RuntimeError: of the user" in got[0]["message"]


def test_random_state_is_fresh(tmp_path):
    (tmp_path / "r.py").write_text(
        "import random, numpy, torch, os, uuid, tempfile, multiprocessing\n"
        "print('drawn', random.random(), numpy.random.rand(), torch.rand(1).item(), uuid.uuid4(),\n"
        "      multiprocessing.current_process().authkey.hex(), next(tempfile._get_candidate_names()))\n")
    code, text = run(tmp_path, "--nproc-per-node=3", "--warm=torch,numpy,random,tempfile,multiprocessing", "r.py")
    assert code == 0 and "ordinary way" not in text, text
    rows = [line.split()[1:] for line in text.splitlines() if line.startswith("drawn")]
    assert len(rows) == 3
    for column in zip(*rows):
        assert len(set(column)) == 3, column


PROCESSES = """
import multiprocessing, os, subprocess, sys
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        info = get_worker_info()
        return torch.tensor([i, info.id, info.seed % 2**31, torch.randint(1 << 30, (1,)).item()])

def seen(x):
    me = multiprocessing.current_process()
    return (x * x, me.name, me.daemon, __name__, sys.argv, os.getcwd(), os.environ["RANK"], os.environ.get("OMP_NUM_THREADS"),
            os.getppid() == int(os.environ["FIRST"]), torch.get_num_threads(), sys.stdin.read())

if __name__ == "__main__":
    method, count = sys.argv[1], int(sys.argv[2])
    os.environ["FIRST"] = str(os.getpid())
    torch.manual_seed(7)
    (torch.randn(300, 300) @ torch.randn(300, 300)).sum()
    context = multiprocessing.get_context(method)
    with context.Pool(count) as pool:
        print("SEEN", multiprocessing.get_start_method(), *pool.map(seen, range(5), chunksize=5), flush=True)
    rows = [r.tolist() for b in DataLoader(Numbers(), batch_size=2, num_workers=count, multiprocessing_context=method) for r in b]
    print("SEEN", rows, subprocess.check_output([sys.executable, "-c", "import sys; print(sys.argv, sys.path)"]), flush=True)
"""

COMPILED = """
import torch
@torch.compile
def f(x): return (x.sin() * 2 + x).sum()
print("SEEN", f(torch.ones(16)).item(), torch._dynamo.utils.counters["stats"]["unique_graphs"], flush=True)
"""

PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.ones(8, 8)
with profile(activities=[ProfilerActivity.CPU]) as p:
    (x @ x).relu().sum()
print("SEEN", *sorted((e.key, e.count) for e in p.key_averages()), flush=True)
"""

PROGRAMS = {  # source, arguments, lines, and what one of them has
    "fork": (PROCESSES, ["fork", "2"], 2, "ForkPoolWorker-1"),
    "spawn": (PROCESSES, ["spawn", "1"], 2, "SpawnPoolWorker-1"),
    "forkserver": (PROCESSES, ["forkserver", "1"], 2, "ForkServerPoolWorker-1"),
    "compile": (COMPILED, [], 1, " 1$"),
    "profiler": (PROFILED, [], 1, r"'aten::matmul', 1\b"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_does_the_same(tmp_path, program):
    """multiprocessing, DataLoader, torch.compile, torch.profiler: what they give is compared."""
    source, words, lines, has = PROGRAMS[program]
    if program == "compile" and not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    (tmp_path / "w.py").write_text(source)
    got = []
    env = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for how in ("--warm", ""):  # What the warm one has compiled the other finds.
        code, text = run(tmp_path, *filter(None, [how]), "w.py", *words, env=env, patience=200)
        assert code == 0 and "ordinary way" not in text, text
        got.append(re.findall(r"^SEEN .*", text, re.M))
    assert got[0] == got[1] and len(got[0]) == lines and re.search(has, got[0][0]), got
