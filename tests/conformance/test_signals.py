"""Signals to the agent, and what stays behind."""
from __future__ import annotations

import pytest

from conform import expect, same

ROWS = [
    ("81 shutdown timeout", "STAY=1 bg --shutdown-timeout 1 --no-python sh trap.sh; kill -TERM $P; wait $P; echo $?; grep -c 'via 15, forcefully exiting via 9' bg.err", "1\n1"),
    ("81b its variable", "export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=1; STAY=1 bg --no-python sh trap.sh; kill -TERM $P; wait $P; echo $?; grep -c 'forcefully exiting via 9' bg.err", "1\n1"),
    ("81c zero", "STAY=1 bg --shutdown-timeout 0 --no-python sh trap.sh; kill -TERM $P; wait $P; echo $?", "1"),
    ("81d never", "bg --shutdown-timeout 9223372036854775807 --no-python sh -c 'trap \"sleep 1; echo saved; exit 0\" TERM; echo up; while :; do sleep 0.1; done'; kill -TERM $P; wait $P; echo $?; cat bg.out; grep -c forcefully bg.err", "1\nup\nsaved\n0"),
    ("82 INT", "bg --no-python sh trap.sh; kill -INT $P; wait $P; echo $? $(tail -1 bg.out)", "1 INT"),
    ("82 TERM", "bg --no-python sh trap.sh; kill -TERM $P; wait $P; echo $? $(tail -1 bg.out)", "1 TERM"),
    ("82 HUP", "bg --no-python sh trap.sh; kill -HUP $P; wait $P; echo $? $(tail -1 bg.out)", "1 HUP"),
    ("82 QUIT", "bg --no-python sh trap.sh; kill -QUIT $P; wait $P; echo $? $(tail -1 bg.out)", "1 QUIT"),
    ("83 last line", "bg --no-python sh trap.sh; kill -TERM $P; wait $P; tail -1 bg.err", "ERROR: Process N got signal: 15"),
    ("83b all of stderr", "bg --no-python sh trap.sh; kill -TERM $P; wait $P; grep -v Terminated bg.err",
     r"W\] Received 15 death signal, shutting down workers\nW\] Sending process N closing signal SIGTERM\nERROR: Process N got signal: 15"),
    ("83c two workers", "bg --nproc-per-node 2 --no-python sh trap.sh; kill -TERM $P; wait $P; grep -c 'closing signal SIGTERM' bg.err; grep -c TERM bg.out", "2\n2"),
    ("84 second signal", "STAY=1 bg --shutdown-timeout 3 --no-python sh trap.sh; kill -HUP $P; until grep -q HUP bg.out; do sleep 0.05; done; sleep 0.2; kill -HUP $P; wait $P; echo $?; tail -n +2 bg.out", "1\nHUP\nTERM"),
    ("84b another signal second", "STAY=1 bg --shutdown-timeout 3 --no-python sh trap.sh; kill -INT $P; until grep -q INT bg.out; do sleep 0.05; done; sleep 0.2; kill -TERM $P; wait $P; echo $?; tail -n +2 bg.out", "1\nINT\nTERM"),
    ("84c SIGTERM again", "STAY=1 bg --shutdown-timeout 3 --no-python sh trap.sh; kill -TERM $P; until grep -q TERM bg.out; do sleep 0.05; done; sleep 0.2; kill -TERM $P; wait $P; echo $?; tail -n +2 bg.out", "1\nTERM\nTERM"),
    ("85 unlisted signal", "bg --no-python sh trap.sh; kill -ALRM $P; wait $P; echo $?", "142"),
    ("86 other list", "bg --signals-to-handle SIGUSR1 --no-python sh trap.sh; kill -USR1 $P; wait $P; echo $? $(tail -1 bg.out)", "1 USR1"),
    ("86b list with blanks", "bg --signals-to-handle ' SIGUSR1 , SIGTERM' --no-python sh trap.sh; kill -TERM $P; wait $P; echo $? $(tail -1 bg.out)", "1 TERM"),
    ("86c not in the list", "bg --signals-to-handle SIGUSR1 --no-python sh trap.sh; kill -TERM $P; wait $P; echo $?", "143"),
    ("86d unknown name", "torchrun --signals-to-handle SIGFOO,SIGTERM --no-python echo ok 2>&1 | grep -v AttributeError", r"W\] Failed to register signal handler for SIGFOO\nok"),
    ("86e KILL cannot be handled", "torchrun --signals-to-handle SIGKILL --no-python echo ok 2>e; echo $?; tail -1 e", r"1\nERROR: \[Errno 22\] Invalid argument"),
    ("own error file of a signal", "export TORCHELASTIC_ERROR_FILE=$PWD/B; bg --no-python sh trap.sh; kill -TERM $P; wait $P; grep -o 'Process [0-9]* got signal: 15' B | head -1", "Process N got signal: 15"),
    ("a worker that is stopped", "bg --shutdown-timeout 1 --no-python sh -c 'echo up; kill -STOP $$$$'; kill -TERM $P; wait $P; echo $?", "1"),
    ("stopped workers and a failure", "torchrun --nproc-per-node 2 --no-python sh -c '[ $RANK = 1 ] && { sleep 0.3; exit 3; }; exec sleep 9' 2>&1 | grep -c 'Sending process'", "1"),
    ("children of a worker in its group", "bg --no-python sh -c 'sleep 61 & echo up; wait'; kill -TERM $P; wait $P; echo $?; sleep 0.2; "
     "N=0; for p in $(pgrep -fx 'sleep 61'); do [ \"$(readlink /proc/$p/cwd)\" = \"$PWD\" ] && N=1; done; echo $N", "1\n0"),
    ("88 nohup", "nohup torchrun --no-python echo ok 2>/dev/null", "ok"),
]


@pytest.mark.parametrize("shell,pattern", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, pattern):
    pair = bench.pair(shell)
    expect(pair, pattern)
    same(pair)
