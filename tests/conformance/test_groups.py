"""Several agents: static and c10d groups, roles, barrier; and the special checks."""
from __future__ import annotations

import pytest

from conform import expect, same

C10D = "--rdzv-backend c10d --rdzv-endpoint localhost:$PORT0 --rdzv-id job1"
SHOW = "--no-python sh -c 'echo $GROUP_RANK $RANK $LOCAL_RANK $WORLD_SIZE $GROUP_WORLD_SIZE $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE'"

ROWS = [
    ("91 two static agents", "for n in 0 1; do torchrun --nnodes 2 --node-rank $n --master-port $PORT0 --nproc-per-node $((n+1)) --no-python sh -c 'echo $GROUP_RANK $RANK $LOCAL_RANK $WORLD_SIZE' 2>/dev/null & [ $n = 0 ] && up; done | sort; wait",
     "0 0 0 3\n1 1 0 3\n1 2 1 3"),
    ("91b static roles", f"for n in 0 1 2; do torchrun --nnodes 3 --node-rank $n --master-port $PORT0 --role r$((n%2)) --nproc-per-node $((n+1)) {SHOW} 2>/dev/null & [ $n = 0 ] && up; done | sort; wait", r"([^\n]*\n){5}.*"),
    ("91c static environment", "for n in 0 1; do torchrun --nnodes 2 --node-rank $n --master-port $PORT0 env.py 2>/dev/null | sed \"s/$PORT0/PORT/\" & [ $n = 0 ] && up; done | sort; wait", r"([^\n]*\n){30,}.*"),
    ("91d c10d group", f"for n in 1 2; do torchrun --nnodes 2 {C10D} --nproc-per-node $n --no-python sh -c 'echo $WORLD_SIZE $GROUP_WORLD_SIZE' 2>/dev/null & done | sort; wait", "3 2\n3 2\n3 2"),
    ("91e c10d roles", f"for n in 1 2; do torchrun --nnodes 2 {C10D} --role r$n --nproc-per-node $n --no-python sh -c 'echo $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE' 2>/dev/null & done | sort; wait", "r1 0 1\nr2 0 2\nr2 1 2"),
    ("91f identical workers", "export TORCH_ELASTIC_WORKER_IDENTICAL=1; for n in 0 1; do torchrun --nnodes 2 --node-rank $n --master-port $PORT0 --nproc-per-node 2 " + SHOW + " 2>/dev/null & [ $n = 0 ] && up; done | sort; wait", r"([^\n]*\n){3}.*"),
    ("91g static endpoint", "torchrun --rdzv-endpoint 127.0.0.1:$PORT0 --no-python sh -c 'echo $MASTER_ADDR $((MASTER_PORT-PORT0)) $TORCHELASTIC_RUN_ID'", "127.0.0.1 0 none"),
    ("92 exit barrier", "for n in 0 1; do (torchrun --nnodes 2 --node-rank $n --master-port $PORT0 --no-python sh -c 'sleep $((RANK*12))' 2>/dev/null; date +%s%N >end$n) & [ $n = 0 ] && up; done; wait; d=$(( ($(cat end0) - $(cat end1)) / 1000000 )); [ ${d#-} -lt 11000 ] && echo together", "together"),
    ("static busy port", "python3 -c 'import socket,os,time\ns=socket.socket(); s.bind((\"127.0.0.1\",int(os.environ[\"PORT0\"]))); s.listen(); t=socket.socket(socket.AF_INET6); t.setsockopt(41,26,1); t.bind((\"::\",int(os.environ[\"PORT0\"]))); t.listen(); print(\"up\",flush=True); time.sleep(20)' >s.out & S=$!; until grep -q up s.out 2>/dev/null; do sleep 0.05; done; torchrun --master-port $PORT0 --no-python true 2>e; echo $?; grep -c EADDRINUSE e; kill $S", r"1\n\d+"),
    ("static alone times out", "torchrun --nnodes 2 --node-rank 0 --master-port $PORT0 --rdzv-conf timeout=1 --no-python true 2>e; echo $?; tail -1 e | grep -o 'Timed out after [0-9]* seconds waiting for clients. 1/2 clients joined' | sed 's/after [0-9]* sec/after S sec/'", r"1\nTimed out after S seconds waiting for clients. 1/2 clients joined"),
    ("static client without server", "torchrun --nnodes 2 --node-rank 1 --master-port $PORT0 --rdzv-conf timeout=1 --no-python true 2>e; echo $?; grep -q 'The client socket has timed out after 1000ms while trying to connect to (127.0.0.1, ' e && echo said", r"1\nsaid"),
    ("c10d alone times out", f"torchrun --nnodes 2 {C10D} --rdzv-conf join_timeout=1,last_call_timeout=1 --no-python true 2>e; echo $?", "1"),
    ("c10d unreachable", "torchrun --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:$PORT0 --rdzv-conf is_host=0,read_timeout=1 --no-python true 2>e; echo $?; tail -1 e | grep -o 'The connection to the C10d store has failed'",
     "1\nThe connection to the C10d store has failed"),
    ("c10d elastic of one", "torchrun --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint localhost:$PORT0 --rdzv-conf last_call_timeout=1 --no-python sh -c 'echo $WORLD_SIZE'", "1"),
    ("87 before the workers", f"touch x.py; torchrun --nnodes 2 {C10D} x.py & P=$!; sleep 1.5; kill -TERM $P; wait $P; echo $?", "143"),
    ("87b HUP", f"touch x.py; torchrun --nnodes 2 {C10D} x.py & P=$!; sleep 1.5; kill -HUP $P; wait $P; echo $?", "129"),
]


@pytest.mark.parametrize("shell,pattern", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, pattern):
    pair = bench.pair(shell)
    expect(pair, pattern)
    same(pair)


def test_88_uninterruptible_worker(bench):
    """The state check stops the group; torchrun then exits 0."""
    program = r"""printf '#include <unistd.h>\nint main(void){if(!vfork()){sleep(9);_exit(0);}return 0;}\n' > d.c && cc -o d d.c
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=1 torchrun --no-python ./d 2>e; echo $?; grep -c 'marking worker group UNHEALTHY' e; grep -c 'entered uninterruptible sleep' e"""
    pair = bench.pair(program)
    expect(pair, "0\n1\n1")
    same(pair)


def test_89_expired_timer(bench):
    """A timer request as torch's FileTimerClient writes it."""
    program = r"""cat > t.sh <<'X'
python3 - <<'Y'
import json,os,time
p=os.environ["TORCHELASTIC_TIMER_FILE"]
for i in range(50):
    try:
        fd=os.open(p,os.O_WRONLY|os.O_NONBLOCK); break
    except OSError: time.sleep(0.1)
os.write(fd,(json.dumps({"version":1,"pid":os.getppid(),"scope_id":"s","expiration_time":time.time()-1,"signal":SIG})+"\n").encode())
Y
exec sleep 20
X
sed -i "s/SIG/$SIG/" t.sh
TORCHELASTIC_ENABLE_FILE_TIMER=1 torchrun --no-python sh t.sh 2>e; echo $?"""
    pair = bench.pair("SIG=9; " + program)
    expect(pair, r"\d+")
    same(pair)
    pair = bench.pair("SIG=15; " + program)
    expect(pair, "1")
    same(pair)


def test_timer_of_a_process_that_is_gone(bench):
    """It ended within its time: nobody is killed for it. And no TMPDIR is no reason to fail."""
    program = r"""cat > t.py <<'X'
import json, os, re, time
if os.environ["RANK"] == "1":
    open("where", "w").write(re.match(".*/torchelastic_[^/]*", os.environ["TORCHELASTIC_ERROR_FILE"])[0])
    time.sleep(4)
else:
    fd = os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_RDWR)
    os.write(fd, (json.dumps({"version": 1, "pid": os.getpid(), "scope_id": "s",
                              "expiration_time": time.time() + 2, "signal": 9}) + "\n").encode())
print("rank", os.environ["RANK"], "is through", flush=True)
X
TMPDIR=/nonexistent TORCHELASTIC_ENABLE_FILE_TIMER=1 torchrun --nproc-per-node 2 t.py 2>e; echo $?
rm -rf $(cat where)"""
    pair = bench.pair(program)
    expect(pair, "rank 0 is through\nrank 1 is through\n0")
    same(pair)


def test_master_port_zero_differs(bench):
    """torchrun exports the 0 that was asked for, with which no worker can do anything."""
    pair = bench.pair("torchrun --master-port 0 --no-python sh -c '[ $MASTER_PORT = 0 ]; echo $?'")
    assert (pair.torch.out, pair.muster.out) == ("0\n", "1\n")
