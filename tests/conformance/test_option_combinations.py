"""Combinations of options, each run by torchrun and by muster."""
from __future__ import annotations

import pytest

from conform import expect, same

TWO = "torchrun --nproc-per-node 2 "

ROWS = [
    ("twelve workers redirected", "torchrun --nproc-per-node 12 --log-dir L -r 3 --no-python sh -c 'echo $RANK'; cat L/*/attempt_0/*/stdout.log | sort -n | tr '\\n' ' '; ls L/*/attempt_0 | wc -l", r"0 1 2 .* 11 12"),
    ("a map reaches nine", "torchrun --nproc-per-node 12 --log-dir L -r 9:1 --no-python sh -c '[ $RANK -lt 9 ] || echo r$RANK' 2>/dev/null | sort; cat L/*/attempt_0/9/stdout.log", ".*r9"),
    ("sixty-four", "torchrun --nproc-per-node 64 --no-python sh -c 'echo $RANK' 2>/dev/null | sort -n | md5sum", ".*"),
    ("log dir with a slash", "torchrun --log-dir L/ --no-python sh -c 'echo $TORCHELASTIC_ERROR_FILE'", "L/UUID_SFX/attempt_0/0/error.json"),
    ("log dir is a dot", "torchrun --log-dir . --no-python sh -c 'echo $TORCHELASTIC_ERROR_FILE'", r"\./UUID_SFX/attempt_0/0/error.json"),
    ("log dir through a link", "mkdir R; ln -s R L; torchrun --log-dir L -r1 --no-python echo hi; ls R", "UUID_SFX"),
    ("log dir with blanks and accents", "torchrun --log-dir 'ä b' -r1 --no-python echo hi; cat 'ä b'/*/attempt_0/0/stdout.log", "hi"),
    ("an empty log dir", "torchrun --log-dir= -r1 --no-python echo hi; ls .tmp", "torchelastic_SFX"),
    ("TMPDIR counts", "mkdir T; TMPDIR=$PWD/T torchrun -r1 --no-python echo hi; ls T", "torchelastic_SFX"),
    ("TEMP if TMPDIR is not there", "mkdir T; TMPDIR=$PWD/none TEMP=$PWD/T torchrun -r1 --no-python echo hi; ls T", "torchelastic_SFX"),
    ("a role with brackets", "torchrun --role 'a]b $x' -t1 --no-python echo hi", r"\[a\]b \$x0\]:hi"),
    ("a role with percent", "torchrun --role '%s%d' -t1 --no-python echo '%n'", r"\[%s%d0\]:%n"),
    ("stdin of two", "echo one | " + TWO + "--no-python sh -c 'read x; echo got:$x' 2>/dev/null | sort", "got:\ngot:one"),
    ("a worker ends by SIGTERM itself", "torchrun --no-python sh -c 'kill -TERM $$$$' 2>&1 | grep -E 'exitcode  |traceback'", ".*SIGTERM.*"),
    ("one fails, one is killed", TWO + "--no-python sh -c '[ $RANK = 0 ] && kill -9 $$$$; exec sleep 9' 2>&1 | grep '  exitcode'", ".*SIGTERM.*SIGKILL.*"),
    ("restart after a signal death", "torchrun --max-restarts 1 --no-python sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && { echo again; exit 0; }; kill -9 $$$$' 2>/dev/null; echo $?", "again\n0"),
    ("duplicates across attempts", "torchrun --log-dir L -t1 --max-restarts 1 --duplicate-stdout-filters x --no-python sh -c 'echo x$TORCHELASTIC_RESTART_COUNT; false' >/dev/null 2>&1; cat L/*/attempt_0/filtered_stdout.log L/*/attempt_1/filtered_stdout.log", r"\[default0\]:x0\n\[default0\]:x1"),
    ("duplicates of two ranks", TWO + "--log-dir L -t1 --duplicate-stdout-filters r --no-python sh -c 'echo r$RANK' >/dev/null 2>&1; sort L/*/attempt_0/filtered_stdout.log", r"\[default0\]:r0\n\[default1\]:r1"),
    ("duplicates and the rank filter", TWO + "--log-dir L -t1 --local-ranks-filter 1 --duplicate-stdout-filters r --no-python sh -c 'echo r$RANK' 2>/dev/null; cat L/*/attempt_0/filtered_stdout.log", r"\[default1\]:r1\n\[default1\]:r1"),
    ("a filter that is part of the prefix", "torchrun --log-dir L -t1 --duplicate-stdout-filters default --no-python echo hi; wc -c <$(echo L/*/attempt_0/filtered_stdout.log)", r"\[default0\]:hi\n0"),
    ("duplicates keep CR lines apart", r"torchrun --log-dir L -t1 --duplicate-stdout-filters b --no-python printf 'a\rb\rc\n' >/dev/null; od -An -c L/*/attempt_0/filtered_stdout.log", ".*"),
    ("tee and a worker that closes stdout", "torchrun -t1 --no-python sh -c 'echo a; exec >&-; sleep 0.3' ; echo $?", r"\[default0\]:a\n0"),
    ("tee of a grandchild", "torchrun -t1 --no-python sh -c '(echo sub) & wait'", r"\[default0\]:sub"),
    ("tee of a failing worker is complete", "torchrun -t1 --no-python sh -c 'seq 5000 > f; dd if=f bs=100000; exit 3' 2>/dev/null | md5sum", ".*"),
    ("redirect of a killed worker is complete", "torchrun --log-dir L -r1 --no-python sh -c 'seq 5000; kill -9 $$$$' 2>/dev/null; md5sum <$(echo L/*/attempt_0/0/stdout.log)", ".*"),
    ("own error file not writable", "export TORCHELASTIC_ERROR_FILE=/no/such/dir/f; torchrun --no-python false 2>/dev/null; echo $?", "1"),
    ("empty own error file", "export TORCHELASTIC_ERROR_FILE=; torchrun --no-python false 2>/dev/null; echo $?; torchrun --no-python sh -c 'echo ${TORCHELASTIC_ERROR_FILE##*/}'", "1\nerror.json"),
    ("rank order of output lines", TWO + "-t1 --no-python sh -c 'sleep 0.$((RANK*5)); echo r$RANK' 2>/dev/null", r"\[default0\]:r0\n\[default1\]:r1"),
    ("a worker in the background of its own", "torchrun --no-python sh -c 'sleep 0.4 & exit 0'; echo $?", "0"),
    ("empty arguments", "torchrun --no-python sh -c 'echo $#' x '' '' a", "3"),
    ("long arguments", "torchrun --no-python sh -c 'echo ${#1}' x $(head -c 100000 /dev/zero | tr '\\0' y)", "100000"),
    ("an environment of 2000 variables", "for i in $(seq 2000); do export V$i=$i; done; torchrun --no-python sh -c 'echo $V1 $V2000'", "1 2000"),
    ("variables with newlines", "export A='x\ny' B=; torchrun --no-python sh -c 'echo \"$A\"; echo ${B-unset}.'", "x\ny\n\\."),
    ("c10d on a file", "torchrun --rdzv-backend c10d --rdzv-endpoint $PWD/f --rdzv-conf store_type=file --rdzv-id job1 --no-python echo ok 2>/dev/null; echo $?", r"(ok\n)?\d"),
    ("is_host given", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:$PORT0 --rdzv-conf is_host=true --no-python echo ok", "ok"),
    ("unknown rdzv option", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf foo=bar --no-python echo ok", "ok"),
    ("bad is_host", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf is_host=maybe --no-python echo ok 2>&1 | tail -1", "ERROR: .*is_host.*"),
    ("bad store_type", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf store_type=zz --no-python echo ok 2>&1 | tail -1", "ERROR: .*store.*"),
    ("elastic range of one node", "torchrun --nnodes 1:1 --no-python sh -c 'echo $GROUP_WORLD_SIZE'", "1"),
    ("standalone with two nodes asked", "timeout 20 torchrun --standalone --nnodes 1:2 --rdzv-conf last_call_timeout=1 --no-python sh -c 'echo $WORLD_SIZE'", "1"),
    ("SIGTERM in the second attempt", "bg --max-restarts 1 --no-python sh -c '[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; echo up; exec sleep 20'; kill -TERM $P; wait $P; echo $?; tail -1 bg.err", "1\nERROR: Process N got signal: 15"),
    ("a signal to a failing group", "bg --nproc-per-node 2 --no-python sh -c 'echo up; [ $RANK = 1 ] && exit 3; trap \"\" TERM; sleep 2'; kill -TERM $P; wait $P; echo $?", "1"),
    ("report of a worker's huge error file", "torchrun --no-python sh -c 'printf \"{\\\"message\\\": \\\"%s\\\", \\\"timestamp\\\": 5}\" $(head -c 50000 /dev/zero | tr \"\\\\0\" z) >$TORCHELASTIC_ERROR_FILE; exit 1' 2>&1 | grep traceback | wc -c", r"5\d+"),
    ("unicode in an error file", "torchrun --no-python sh -c 'printf \"{\\\"message\\\": \\\"\\\\u00e9 \\\\ud83d\\\\ude00 ä\\\", \\\"timestamp\\\": 5}\" >$TORCHELASTIC_ERROR_FILE; exit 1' 2>&1 | grep -A1 traceback", ".*"),
]


@pytest.mark.parametrize("shell,pattern", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, pattern):
    pair = bench.pair(shell)
    expect(pair, pattern)
    same(pair)
