"""The deliberate differences: torchrun's way and ours, side by side, as
docs/DIFFERENCES.md has them. A row here that torchrun no longer shows can go."""
from __future__ import annotations

import re

import pytest

from conform import ROOT, normalise

# (name, shell, torchrun's output, ours, words of its row in DIFFERENCES.md)
ROWS = [
    ("the script's arguments", "torchrun --no-python echo --max 2>/dev/null; echo $?", "2|--max\n0", "--max\n0", "ambiguous"),
    ("49 orphans of SIGKILL", "bg --no-python sh trap.sh; kill -9 $A; wait $P; sleep 1; "
     "N=0; for p in $(pgrep -fx 'sh trap.sh'); do [ \"$(readlink /proc/$p/cwd)\" = \"$PWD\" ] && { N=1; kill -9 $p; }; done; echo left $N",
     "left 1", "left 0", "orphan|outlives|left running"),
    ("85 orphans of another signal", "bg --no-python sh trap.sh; kill -ALRM $A; wait $P; echo $?; sleep 0.5; "
     "N=0; for p in $(pgrep -fx 'sh trap.sh'); do [ \"$(readlink /proc/$p/cwd)\" = \"$PWD\" ] && { N=1; kill -9 $p; }; done; echo left $N",
     "142\nleft 1", "142\nleft 0", "orphan|outlives|left running"),
    ("85 SIGUSR1", "bg --no-python sh trap.sh; kill -USR1 $A; wait $P; echo $? $(tail -1 bg.out); grep -o 'SIGUSR1 from pid.*' bg.err | sed 's/from.*:/from:/'; "
     "for p in $(pgrep -fx 'sh trap.sh'); do [ \"$(readlink /proc/$p/cwd)\" = \"$PWD\" ] && kill -9 $p; done",
     "138 up", "0 USR1\nSIGUSR1 from: passed on to rank 0", "SIGUSR1"),
    ("85 SIGUSR2 that no worker catches", "bg --no-python sh -c 'echo up; sleep 1; echo end'; kill -USR2 $A; wait $P; echo $? $(tail -1 bg.out); sleep 1; "
     "grep -o 'SIGUSR2 from pid.*' bg.err | sed 's/from.*:/from:/'",
     "140 (up|end)", "0 end\nSIGUSR2 from: not passed on, as no worker of this node has a handler for it", "SIGUSR2"),
    ("a daemon of a failed worker", "torchrun --no-python sh -c 'setsid sleep 64.5 & exit 3' 2>/dev/null; sleep 0.3; "
     "N=0; for p in $(pgrep -fx 'sleep 64.5'); do [ \"$(readlink /proc/$p/cwd)\" = \"$PWD\" ] && { N=1; kill -9 $p; }; done; echo left $N",
     "left 1", "left 0", "descend|tree|outlives|orphan|left running"),
    ("84 a second Ctrl-C", "STAY=1 bg --shutdown-timeout 3 --no-python sh trap.sh; kill -INT $P; until grep -q INT bg.out; do sleep 0.05; done; sleep 0.3; "
     "kill -INT $P; wait $P; echo $? $(tail -n +2 bg.out); grep -c 'exiting via 9' bg.err", "1 INT TERM\n1", "1 INT\n1", "Ctrl-C"),
    ("nohup", "bgh() { env --default-signal --ignore-signal=HUP torchrun \"$@\" >bg.out 2>bg.err & P=$!; }; bgh --no-python sh -c 'trap \"\" HUP; echo up; sleep 2; echo end'; "
     "until grep -q up bg.out 2>/dev/null; do sleep 0.05; done; sleep 0.2; kill -HUP $P; wait $P; echo $? $(tail -1 bg.out)",
     "1 end", "0 end", "nohup|ignored"),
    ("D7 sys.exit without a code", "echo 'import sys; sys.exit()' >rp.py; [ $SIDE = torch ] && T=12 || T=60; timeout -s KILL $T torchrun --run-path $PWD/rp.py >/dev/null 2>&1; echo $?", "137", "0", "sys.exit"),
    ("D8 a broken error file", "torchrun --no-python sh -c 'echo { >$TORCHELASTIC_ERROR_FILE; exit 3' 2>&1 | grep -c 'sh FAILED'", "0", "1", "error file|error.json"),
    ("an empty PYTHON_EXEC", "PYTHON_EXEC= torchrun x.py 2>&1 | tail -1", "ERROR: ", "ERROR: PYTHON_EXEC is empty", "PYTHON_EXEC"),
    ("no workers", "torchrun --nproc-per-node 0 x.py 2>&1 | tail -1", "ERROR: ", "ERROR: --nproc-per-node is 0: at least one worker must run", "AssertionError"),
    ("what a signal means", "torchrun --no-python bash -c 'kill -SEGV $$$$' 2>&1 | grep -o 'died of signal 11 (SIGSEGV): a fault'", "", r"died of signal 11 \(SIGSEGV\): a fault", "what the signal means"),
    ("18 nodes that are no number", "torchrun --nnodes=1:2:3 x.py 2>e; echo $?; tail -1 e",
     '1\nERROR: nnodes=1:2:3 is not in "MIN:MAX" format', "2\nERROR: --nnodes takes a number of nodes, or a range as in 2:4, and not '1:2:3'", "nnodes=two"),
    ("24 OMP", "unset OMP_NUM_THREADS; torchrun --nproc-per-node 2 --no-python true 2>e; wc -l <e", "4", "1", "OMP_NUM_THREADS"),
    ("a script that does not exist", "torchrun --nproc-per-node 2 nothere.py 2>e; echo $?; grep -c 'No such file' e", "1\n[2-9]", "1\n1", "before anything starts"),
    ("a shell script", "echo '#!/bin/sh' >job.sh; echo 'echo hi there' >>job.sh; torchrun job.sh 2>&1 | tail -1", ".*",
     "ERROR: job.sh is a script for sh, and Python was to run it", "before anything starts"),
    ("private logs", "torchrun --log-dir L -r 1 --no-python true; stat -c %a L/*/attempt_0/0/stdout.log", "644", "600", "mode 0600"),
    ("the file timer's FIFO", "umask 022; TORCHELASTIC_ENABLE_FILE_TIMER=1 torchrun --no-python sh -c "
     "'until [ -p $TORCHELASTIC_TIMER_FILE ]; do sleep 0.1; done; stat -c %a $TORCHELASTIC_TIMER_FILE'", "644", "600", "FIFO"),
    ("usage", "COLUMNS=80 torchrun 2>&1 | wc -l", r"\d\d", "2", "usage"),
]


@pytest.mark.parametrize("shell,theirs,ours,words", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, theirs, ours, words):
    pair = bench.pair(shell)
    got = ["\n".join(normalise(side.out, side.directory)) for side in (pair.torch, pair.muster)]
    assert re.fullmatch(theirs, got[0]), ("torchrun", got[0])
    assert re.fullmatch(ours, got[1]), ("muster", got[1])
    documented = (ROOT / "docs" / "DIFFERENCES.md").read_text()
    assert any(line.startswith("|") and re.search(words, line) for line in documented.splitlines())


def test_stdout_closed(bench):
    """Needs the real torchrun: the zygote's client cannot hand on what is closed."""
    pair = bench.pair("torchrun --no-python sh -c 'echo hi' >&- 2>/dev/null; echo $?", real=True)
    assert (pair.torch.out, pair.muster.out) == ("1\n", "0\n")
    assert "closed stdout" in (ROOT / "docs" / "DIFFERENCES.md").read_text()
