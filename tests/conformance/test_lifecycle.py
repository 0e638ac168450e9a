"""Failures, restarts, reports, error files, events."""
from __future__ import annotations

import pytest

from conform import ROOT, expect, same

REC = r"""
cat > rec.py <<'X'
import os,time
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"]=="1": raise ValueError("boom")
    time.sleep(20)
main()
X
"""
# A path that is not UTF-8, and a NUL: Python's JSON has escapes for both that are no
# characters. torchrun prints NUL as it is, we write it out.
ODD = r"""
cat > odd.py <<'X'
import os
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError(f"cannot read {os.fsdecode(bytes([99, 0xe9]))}: bad header: {chr(0)}{chr(1)}")
main()
X
cat > read.py <<'X'
import json
print(json.load(open("A"))["message"]["message"].replace(chr(0), r"\u0000"))
X
export PYTHONIOENCODING=:backslashreplace
"""
# What @record writes, without the seconds of importing torch.
ERR = r"""
cat > err.sh <<'X'
if [ "$RANK" = "${BAD:-1}" ]; then printf '%s' "$TEXT" >"$TORCHELASTIC_ERROR_FILE"; exit ${CODE:-1}; fi
exec sleep 20
X
"""
RECORD = '{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback:\\n  one\\nValueError: boom\\n", "timestamp": "1700000000"}}}'
TWO = "torchrun --nproc-per-node 2 --no-python "
LAST = " 2>&1 | sed -n '/^=====/,$p'"

ROWS = [
    ("69 early success", TWO + "sh -c 'sleep $RANK; echo $RANK' 2>/dev/null; echo $?", "0\n1\n0"),
    ("70 exit code", "torchrun --no-python sh -c 'exit 7' 2>e; echo $?; grep exitcode e",
     r"1\nE\] failed \(exitcode: 7\) local_rank: 0 \(pid: N\) of binary: sh\n  exitcode  : 7 \(pid: N\) "),
    ("71 survivors", TWO + "sh -c '[ $RANK = 1 ] && exit 3; exec sleep 9' 2>&1 | grep '  exitcode'",
     r"  exitcode  : -15 \(pid: N\)  \(SIGTERM\)\n  exitcode  : 3 \(pid: N\) "),
    ("71b survivor that ends well", TWO + "sh -c '[ $RANK = 1 ] && sleep 0.5 && exit 3; trap \"exit 0\" TERM; while :; do sleep 0.1; done' 2>&1 | grep -c '  exitcode'", "1"),
    ("71c the whole report", TWO + "sh -c '[ $RANK = 1 ] && exit 3; exec sleep 9' 2>&1",
     r"W\] Sending process N closing signal SIGTERM\nE\] failed \(exitcode: 3\) local_rank: 1 \(pid: N\) of binary: sh\nERROR: \n={60}\nsh FAILED\n-{60}\nFailures:\n.*={60}"),
    ("71d four workers", "torchrun --nproc-per-node 4 --no-python sh -c '[ $RANK = 2 ] && exit 3; exec sleep 9' 2>&1 | grep -E '^\\[|rank|exitcode  '", ".*"),
    ("72 signal death", "torchrun --no-python sh -c 'kill -SEGV $$$$' 2>&1 | grep '  traceback'", r"  traceback : Signal 11 \(SIGSEGV\) received by PID N"),
    ("72b narrow report", "torchrun --no-python sh -c 'kill -KILL $$$$'" + LAST,
     r"= as wide as the block\nsh FAILED\n- as wide as the block\nFailures:\n  <NO_OTHER_FAILURES>\n- as wide as the block\nRoot Cause \(first observed failure\):\n\[0\]:\n  time      : TIME\n  host      : \S+\n"
     r"  rank      : 0 \(local_rank: 0\)\n  exitcode  : -9 \(pid: N\)  \(SIGKILL\)\n  error_file: <N/A>\n  traceback : Signal 9 \(SIGKILL\) received by PID N\n= as wide as the block"),
    ("72c real-time signal", "torchrun --no-python bash -c 'kill -40 $$$$' 2>&1 | grep -E 'exitcode  |traceback'", ".*40.*"),
    ("72d long title", "printf '#!/bin/sh\\nexit 1\\n' >$(printf 'y%.0s' $(seq 70)); chmod +x yy*; torchrun --no-python ./yy*" + LAST, ".*={60}"),
    ("73 @record", REC + "torchrun --nproc-per-node 2 rec.py 2>&1 | grep -A1 'error_file: [^<]'", "  error_file: DIR/.tmp/torchelastic_SFX/UUID_SFX/attempt_0/1/error.json\n  traceback : .*"),
    ("73b as @record writes it", ERR + f"export TEXT='{RECORD}'; " + TWO + "sh err.sh 2>&1 | sed -n '/Root Cause/,$p'",
     r"Root Cause .*time      : TIME.*error_file: DIR/.*error.json\n  traceback : Traceback:\n    one\n  ValueError: boom\n  \n={60}"),
    ("73c a plain message", ERR + "export TEXT='{\"message\": \"oh no\\nsecond\", \"timestamp\": 1700000000}'; " + TWO + "sh err.sh 2>&1 | sed -n '/Root Cause/,$p'",
     r"Root Cause .*traceback : oh no\nsecond\n={60}"),
    ("73d no callstack", ERR + "export TEXT='{\"message\": {\"message\": \"only this\", \"extraInfo\": {\"timestamp\": \"17\"}}}'; " + TWO + "sh err.sh 2>&1 | grep traceback", ".*only this.*"),
    ("73e neither", ERR + "export TEXT='{\"message\": {\"extraInfo\": {\"timestamp\": \"17\"}}}'; " + TWO + "sh err.sh 2>&1 | grep traceback", ".*<N/A>.*"),
    ("73f empty message", ERR + "export TEXT='{\"message\": \"\", \"timestamp\": 17}'; " + TWO + "sh err.sh 2>&1 | grep -E 'traceback'", ".*To enable traceback.*"),
    ("73g the earliest is the root", ERR + "export TEXT='{\"message\": \"m\", \"timestamp\": 5}' BAD=0; " + TWO + "sh -c '[ $RANK = 1 ] && { sleep 0.3; exit 4; }; sh err.sh' 2>&1 | grep -A4 'Root'", ".*rank      : 0.*"),
    ("73h @record of odd bytes", ODD + "TORCHELASTIC_ERROR_FILE=$PWD/A torchrun odd.py 2>&1 | sed 's/\\x00/\\\\u0000/g' | sed -n '/Root Cause/,$p' | grep -v 'line [0-9]*, in\\|^ *[@^~]*$\\|^    '; python3 read.py",
     r"Root Cause .*error_file: DIR/.*/error.json\n  traceback : Traceback .*\n  ValueError: cannot read c\\udce9: bad header: \\u0000\x01\n={60}\nERROR: cannot read c\\udce9: bad header: \\u0000\x01"),
    ("74 copy of the root's file", ERR + f"export TEXT='{RECORD}' CODE=3; TORCHELASTIC_ERROR_FILE=$PWD/A " + TWO + "sh err.sh 2>/dev/null; cat A", r".*\"errorCode\": 3.*"),
    ("74b a plain message is copied as it is", ERR + "export TEXT='{\"message\": \"m\", \"timestamp\": 5}'; TORCHELASTIC_ERROR_FILE=$PWD/A " + TWO + "sh err.sh 2>e; cat A; echo; grep -v '^ ' e | head -4", ".*"),
    ("74c an old file is replaced", ERR + f"echo '{{\"old\": 1}}' >A; export TEXT='{RECORD}'; TORCHELASTIC_ERROR_FILE=$PWD/A " + TWO + "sh err.sh 2>e; grep -c errorCode A; grep -c 'will be overwritten' e", "1\n1"),
    ("74d no file of the worker", "TORCHELASTIC_ERROR_FILE=$PWD/A torchrun --no-python false 2>/dev/null; ls A 2>&1 | tail -1", ".*No such file.*"),
    ("75 own crash", "TORCHELASTIC_ERROR_FILE=$PWD/B torchrun --nproc-per-node q x.py 2>/dev/null; grep -o 'Unsupported nproc_per_node value: q' B | head -1", "Unsupported nproc_per_node value: q"),
    ("75b parser errors leave none", "TORCHELASTIC_ERROR_FILE=$PWD/B torchrun --bogus x.py 2>/dev/null; ls B 2>&1 | tail -1", ".*No such file.*"),
    ("76 nobody to tell", ERR + f"export TEXT='{RECORD}'; " + TWO + "sh err.sh 2>&1 | grep -c 'no error file defined for parent'", "1"),
    ("77 restarts", "torchrun --max-restarts 2 --no-python sh -c 'echo $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS; [ $TORCHELASTIC_RESTART_COUNT = 1 ]' 2>/dev/null; echo $?", "0/2\n1/2\n0"),
    ("77b all used up", "torchrun --max-restarts 2 --no-python sh -c 'echo $TORCHELASTIC_RESTART_COUNT; exit 4' 2>e; echo $?; grep -c 'failed (exit' e; grep -c FAILED e", "0\n1\n2\n1\n3\n1"),
    ("77c both are restarted", "torchrun --nproc-per-node 2 --max-restarts 1 --no-python sh -c 'echo $RANK.$TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || { [ $RANK = 1 ] && sleep 0.5 && exit 1; exec sleep 20; }' 2>/dev/null | sort", "0.0\n0.1\n1.0\n1.1"),
    ("78 attempts", "torchrun --log-dir L7 --max-restarts 1 --no-python false 2>/dev/null; ls L7/*", "attempt_0\nattempt_1"),
    ("78b logs of attempts", "torchrun --log-dir L7 -r1 --max-restarts 1 --no-python sh -c 'echo $TORCHELASTIC_RESTART_COUNT; false' 2>/dev/null; cat L7/*/attempt_0/0/stdout.log L7/*/attempt_1/0/stdout.log", "0\n1"),
    ("78c tee of attempts", "torchrun -t1 --max-restarts 1 --no-python sh -c 'echo $TORCHELASTIC_RESTART_COUNT; false' 2>/dev/null", r"\[default0\]:0\n\[default0\]:1"),
    ("79 port survives", "torchrun --max-restarts 1 --no-python sh -c 'echo $MASTER_PORT; false' 2>/dev/null | uniq | wc -l", "1"),
    ("67 events", "torchrun --event-log-handler console --no-python true 2>&1 | grep -o '\"name\": \"[^\"]*\"'",
     r'.*RENDEZVOUS.*\n.*ASSIGN_WORKER_RANKS.*\n.*START.*\n.*SUCCEEDED.*\n.*SUCCEEDED.*'),
    ("67b event fields", "torchrun --event-log-handler console --no-python true 2>&1 | python3 -c 'import sys,json\nfor l in sys.stdin:\n  e=json.loads(l); m=e[\"metadata\"]; i=json.loads(m[\"metadata\"]); print(e[\"name\"],e[\"source\"],e[\"timestamp\"],list(m),sorted(i),m[\"role\"],m[\"state\"],m[\"agent_restarts\"],m[\"rdzv_backend\"],m[\"global_rank\"],m[\"group_rank\"],m[\"raw_error\"],i.get(\"entry_point\"),i.get(\"exit_code\"))'", ".*"),
    ("68 unknown handler", "torchrun --event-log-handler q --no-python true 2>e; echo $?; tail -1 e", "1\nERROR: 'q'"),
    ("23 no workers", "torchrun --nproc-per-node=0 x.py 2>e; echo $?", "1"),
    ("23b negative interval", "torchrun --monitor-interval=-1 --no-python true 2>/dev/null; echo $?", "1"),
    ("90 health check", "TORCHELASTIC_HEALTH_CHECK_PORT=$PORT0 torchrun --no-python true 2>&1 | grep -c 'No health check server started'", "1"),
    ("90b health check no number", "TORCHELASTIC_HEALTH_CHECK_PORT=x torchrun --no-python echo ok 2>&1", "ok"),
    ("report names: script", "printf 'import sys; sys.exit(3)' >f.py; torchrun f.py 2>&1 | grep FAILED", "f.py FAILED"),
    ("report names: module", "printf 'import sys; sys.exit(3)' >fm.py; torchrun -m fm 2>&1 | grep FAILED", "fm FAILED"),
    ("report names: PYTHON_EXEC", "PYTHON_EXEC=/bin/false torchrun x.py 2>&1 | grep -E 'FAILED|binary'", r"E\] failed \(exitcode: 1\) local_rank: 0 \(pid: N\) of binary: /bin/false\n/bin/false FAILED"),
    ("report names: macro", "torchrun --no-python sh -c 'exit 1' '${local_rank}' 2>&1 | grep FAILED", "sh FAILED"),
    ("an error file that is a directory", "torchrun --no-python sh -c 'mkdir $TORCHELASTIC_ERROR_FILE; exit 3' 2>&1 | grep -E 'error_file|exitcode  '", ".*exitcode  : 3.*<N/A>.*"),
    ("exit 255", "torchrun --no-python sh -c 'exit 255' 2>&1 | grep '  exitcode'", r"  exitcode  : 255 \(pid: N\) "),
    ("time zone of the report", "TZ=Asia/Tokyo; export TZ; torchrun --no-python false 2>&1 | sed -n 's/  time *: //p' | cut -c1-10 | sed \"s/$(date +%F)/TODAY/\"", "TODAY"),
]


@pytest.mark.parametrize("shell,pattern", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, pattern):
    pair = bench.pair(shell)
    expect(pair, pattern)
    same(pair)


def test_64_launch_configuration(bench):
    pair = bench.pair("LOGLEVEL=INFO torchrun --no-python true 2>&1 | grep -c 'launcher/api.py:254'", real=True)
    expect(pair, "19")
    same(pair)


def test_65_bad_level(bench):
    pair = bench.pair("LOGLEVEL=info torchrun --no-python true 2>&1 | tail -1; "
                      "LOGLEVEL=10 torchrun --no-python true 2>/dev/null; echo $?", real=True)
    expect(pair, "ERROR: Unknown level: 'info'\n1")
    same(pair)


def test_80_failure_grace_is_30_seconds(bench):
    """torchrun's flag governs signalled shutdowns only; our restarts have its time, too."""
    pair = bench.pair("torchrun --shutdown-timeout 3 --nproc-per-node 2 --no-python sh -c "
                      "'[ $RANK = 1 ] && sleep 0.5 && exit 3; trap \"\" TERM; while :; do sleep 1; done' >e 2>&1; "
                      "grep -c 'via 15, forcefully exiting via 9' e; [ $SECONDS -ge 30 ] && echo patient; "
                      "grep -o 'rank 0 (pid.*' e | sed 's/pid [0-9]*/pid/'", timeout=90)
    assert pair.torch.out == "1\npatient\n"
    assert pair.muster.out == ("1\nrank 0 (pid) has not ended 2 s after SIGTERM, and will be killed in 1 s: "
                               "--restart-grace sets that time\n")
    assert "--restart-grace" in (ROOT / "docs/DIFFERENCES.md").read_text()
