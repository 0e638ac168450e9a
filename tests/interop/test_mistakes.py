"""What people type by mistake: the first line says what is wrong, the next what to type. Nothing waits, nothing starts."""
from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from stores import MUSTER

# words, exit code, first line, what a later line has
MISTAKES = [
    ("run python train.py", 1, "'python' is Python itself", "Did you mean `muster run train.py`?"),
    ("run python3.11 train.py", 1, "'python3.11' is Python itself", "`muster run train.py`"),
    ("train.py --lr 3", 2, "unknown command: train.py", "did you mean `muster run train.py --lr 3`?"),
    ("--nproc-per-node=4 train.py", 2, "unknown command: --nproc-per-node=4", "`muster run --nproc-per-node=4 train.py`"),
    ("rnu train.py", 2, "unknown command: rnu", "did you mean `muster run`?"),
    ("run trian.py", 1, "the script 'trian.py' cannot be read", "Did you mean train.py?"),
    ("run sub/trian.py", 1, "the script 'sub/trian.py' cannot be read", "Did you mean sub/train.py?"),
    ("run -np 4 train.py", 2, "unrecognized arguments: -np", "-np: did you mean --nproc-per-node?"),
    ("run -n4 train.py", 2, "unrecognized arguments: -n4", "did you mean --nproc-per-node?"),
    ("run --nproc-per-nodes 4 train.py", 2, "unrecognized arguments: --nproc-per-nodes", "did you mean --nproc-per-node?"),
    ("run --nproc-per-node train.py", 2, "the following arguments are required", "--nproc-per-node took 'train.py' for its value"),
    ("run --nproc-per-node=x train.py", 1, "Unsupported nproc_per_node value: x", "takes a number"),
    ("run --no-python train.py", 1, "--no-python was to execute 'train.py'", "`muster run train.py`, without --no-python"),
    ("run --no-python ./train.py", 1, "--no-python was to execute './train.py'", "without --no-python"),
    ("run --rdzv-backend=cd10 --rdzv-endpoint=localhost:0 train.py", 1, "backend 'cd10' is not registered", "Did you mean c10d?"),
    ("run --standalone --nnodes=2 train.py", 1, "--standalone is for one machine", "--rdzv-endpoint=HOST:29400"),
    ("run --nproc-per-node=99999999 train.py", 1, "this machine cannot have more than", None),
    ("run --report=no/such/r.json train.py", 1, "there is no directory no/such", "mkdir -p no/such"),
    ("run --hang=10m --progress-file=/no/such/p train.py", 1, "there is no directory /no/such", "mkdir"),
    ("run --hang=10 train.py", 1, "--hang=10: 10 what? Add the unit: 10s, 10m or 10h", None),
    ("run --hang=10m:restat train.py", 1, "choose from report, restart, stop", None),
    ("run --restart-grace=5 train.py", 1, "--restart-grace=5: 5 what?", None),
    ("run --restart-policy=ValeuError:stop train.py", 1, "did you mean ValueError?", "signal:NAME"),
    ("run --restart-policy=oom:sop train.py", 1, "did you mean stop?", None),
    ("run --restart-policy=dfault train.py", 1, "neither `default`, nor rules", "Did you mean default?"),
    ("run --restart-policy=exit:x:stop train.py", 1, "give one from 1 to 255", None),
    ("run --restart-budget=5/0s train.py", 1, "did you mean 5/1h?", None),
    ("run --restart-budget=5/1hour train.py", 1, "give a time", None),
    ("run --restart-backoff=9s..1s train.py", 1, "1s..60s", None),
    ("run --notice=SIGTREM train.py", 1, "did you mean SIGTERM?", None),
    ("run --notice=SIGKILL train.py", 1, "nobody can handle SIGKILL", None),
    ("run --notice=SIGTERM:5 train.py", 1, "5 what?", None),
    ("run --notice=slurn train.py", 1, "did you mean slurm?", None),
    ("run --on-notice=SIGUSR3 train.py", 1, "did you mean SIGUSR", None),
    ("run --exit-codes=causes train.py", 2, "invalid choice: 'causes'", None),
    ("run --start-method=zz train.py", 2, "invalid choice: 'zz'", "usage: muster run"),
    ("run", 2, "the following arguments are required: training_script", "muster run -h"),
    ("status --wacht", 2, "did you mean --watch?", None),
    ("stacks --jsn", 2, "did you mean --json?", None),
    ("store --prot=1", 2, "did you mean --port?", None),
]


@pytest.fixture
def here(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("train.py", "sub/train.py"):
        (tmp_path / name).write_text("raise SystemExit('it ran')\n")
    return tmp_path


def said(words: str, here: Path, terminal: bool) -> tuple[int, list[str]]:
    """Exit code and lines on stderr, which is a pipe or a terminal."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    p = subprocess.Popen([MUSTER, *words.split()], cwd=here, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    got = b""
    try:
        while chunk := os.read(ours, 65536):
            got += chunk
    except OSError:  # the end of a terminal
        pass
    os.close(ours)
    return p.wait(60), got.decode().replace("\r", "").splitlines()


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("words, code, cause, hint", MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_explains_itself(here, words, code, cause, hint, terminal):
    got, lines = said(words, here, terminal)
    assert got == code and "it ran" not in "".join(lines), lines
    assert ": error: " in lines[0] and cause in lines[0], lines
    assert not hint or any(hint in x for x in lines[1:]), lines
    assert "forget to call" not in "".join(lines)


def test_a_script_may_have_the_name_of_an_interpreter(here):
    (here / "python").write_text("print('a script')\n")
    done = subprocess.run([MUSTER, "run", "python"], cwd=here, capture_output=True, text=True, timeout=60)
    assert done.stdout == "a script\n", done.stderr


def test_nodes_without_an_endpoint_are_told_where_they_meet(here):
    """Before anything else, and while it still waits: it would do so for ten minutes."""
    words = "run --rdzv-backend=c10d --nnodes=2 --rdzv-conf=join_timeout=1 --rdzv-id=mistake train.py"
    _, lines = said(words, here, False)
    assert "the nodes meet at localhost:29400" in lines[0] and "--rdzv-endpoint=HOST:PORT, the same on all" in lines[0], lines
