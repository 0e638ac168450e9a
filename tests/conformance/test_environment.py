"""What a worker is given: environment, descriptors, session, directory, interpreter."""
from __future__ import annotations

import pytest

from conform import expect, same

ROWS = [
    ("35 agent store", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --no-python sh -c 'echo $TORCHELASTIC_USE_AGENT_STORE'", "False"),
    ("36 full environment", "unset OMP_NUM_THREADS; torchrun env.py | sed -E 's/(MASTER_PORT)=[0-9]+/\\1=PORT/;s/(MASTER_ADDR)=[a-z0-9.-]+/\\1=HERE/'", r"([^\n]*\n){17}.*"),
    ("36b nothing else is new", "unset OMP_NUM_THREADS; env | cut -d= -f1 | sort >a; torchrun --no-python env | cut -d= -f1 | sort >b; comm -13 a b; comm -23 a b | grep -vx -e ZYGOTE -e _",
     "GROUP_RANK\nGROUP_WORLD_SIZE\nLOCAL_RANK\nLOCAL_WORLD_SIZE\nMASTER_ADDR\nMASTER_PORT\nRANK\nROLE_NAME\nROLE_RANK\nROLE_WORLD_SIZE\nTORCHELASTIC_ERROR_FILE\n.*WORLD_SIZE"),
    ("37 error file", "torchrun --log-dir L1 --no-python sh -c 'echo $TORCHELASTIC_ERROR_FILE'", "L1/UUID_SFX/attempt_0/0/error.json"),
    ("37b error file without log dir", "torchrun --no-python sh -c 'echo $TORCHELASTIC_ERROR_FILE'",
     "DIR/.tmp/torchelastic_SFX/UUID_SFX/attempt_0/0/error.json"),
    ("38 log-dir /dev/null", "torchrun --log-dir /dev/null -r3 --no-python sh -c 'echo [$TORCHELASTIC_ERROR_FILE]'", r"\[\]"),
    ("39 virtual local rank", "CUDA_VISIBLE_DEVICES=4,5 torchrun --virtual-local-rank --nproc-per-node 2 --no-python sh -c 'echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES' 2>/dev/null | sort",
     "0 0 4\n1 0 5"),
    ("39b without a list", "torchrun --virtual-local-rank --nproc-per-node 2 --no-python sh -c 'echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES $0' '$local_rank' 2>/dev/null | sort",
     "0 0 0 0\n1 0 1 1"),
    ("40 too short a list", "CUDA_VISIBLE_DEVICES=4 torchrun --virtual-local-rank --nproc-per-node 2 --no-python true 2>&1 | tail -1",
     "ERROR: local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=4"),
    ("41 NCCL variable", "TORCH_NCCL_ASYNC_ERROR_HANDLING=3 torchrun --no-python sh -c 'echo $TORCH_NCCL_ASYNC_ERROR_HANDLING'", "3"),
    ("46 session", "torchrun --no-python sh -c 'set -- $(ps -o pid=,pgid=,sid= -p $$$$); [ $1 = $2 ] && [ $2 = $3 ] && echo leader'", "leader"),
    ("47 descriptors", "exec 7</dev/null; torchrun --no-python ls /proc/self/fd | tr '\\n' ' '", "0 1 2 3 "),
    ("48 stdin", "echo hi | torchrun --no-python cat", "hi"),
    ("50 missing program", "torchrun --no-python ./nope 2>e; echo $?; tail -1 e", r"1\nERROR: \[Errno 2\] No such file or directory: './nope'"),
    ("50b no permission", "touch f; torchrun --no-python ./f 2>e; echo $?; tail -1 e", r"1\nERROR: \[Errno 13\] Permission denied: './f'"),
    ("50c a directory", "torchrun --no-python /tmp 2>e; echo $?; tail -1 e", r"1\nERROR: \[Errno 13\] Permission denied: '/tmp'"),
    ("50d not on PATH", "torchrun --no-python no-such-program 2>e; echo $?; tail -1 e", r"1\nERROR: \[Errno 2\] No such file or directory: 'no-such-program'"),
    ("50e no interpreter", "printf '#!/no/such\\n' >s; chmod +x s; torchrun --no-python ./s 2>e; echo $?; tail -1 e", r"1\nERROR: \[Errno 2\] No such file or directory: './s'"),
    ("50f format", "printf 'no program' >s; chmod +x s; torchrun --no-python ./s 2>e; echo $?; tail -1 e", r"1\nERROR: \[Errno 8\] Exec format error: './s'"),
    ("PYTHON_EXEC missing", "PYTHON_EXEC=/no/python torchrun x.py 2>e; echo $?; tail -1 e", r"1\nERROR: \[Errno 2\] No such file or directory: '/no/python'"),
    ("directory", "mkdir d; cd d; torchrun --no-python pwd", "DIR/d"),
    ("umask", "umask 027; torchrun --no-python sh -c 'umask'", "0027"),
    ("PATH is the worker's", "mkdir p; printf '#!/bin/sh\\necho mine\\n' >p/prog; chmod +x p/prog; PATH=$PWD/p:$PATH torchrun --no-python prog", "mine"),
    ("SIGPIPE is default", "torchrun --no-python sh -c 'yes | head -1; grep SigIgn /proc/self/status | cut -c20-'", "y\n0+"),
    ("no signal is blocked", "torchrun --no-python grep SigBlk /proc/self/status", "SigBlk:\t0+"),
    ("role", "torchrun --role tr --no-python sh -c 'echo $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE'", "tr 0 1"),
    ("empty role", "torchrun --role= -t1 --no-python sh -c 'echo [$ROLE_NAME]'", r"\[0\]:\[\]"),
    ("inherited RANK is replaced", "RANK=77 WORLD_SIZE=99 torchrun --no-python sh -c 'echo $RANK $WORLD_SIZE'", "0 1"),
    ("inherited signals are replaced", "TORCHELASTIC_SIGNALS_TO_HANDLE=x torchrun --no-python sh -c 'echo $TORCHELASTIC_SIGNALS_TO_HANDLE'",
     "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    ("inherited timer file", "TORCHELASTIC_TIMER_FILE=/t torchrun --no-python sh -c 'echo $TORCHELASTIC_TIMER_FILE'", "/t"),
    ("restarts in the environment", "torchrun --max-restarts 3 --no-python sh -c 'echo $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS'", "0 3"),
    ("an argument with two dollars", "torchrun --no-python echo 'a$$b' '$$$$' '$$local_rank'", r"a\$b \$\$ \$local_rank"),
    ("script arguments", "echo 'import sys; print(sys.argv)' >a.py; torchrun a.py --x '${local_rank}' -- y", r"\['a.py', '--x', '0', '--', 'y'\]"),
    ("module", "mkdir pk; echo 'import sys; print(__name__, sys.argv[1:])' >pk/__main__.py; torchrun -m pk a b", r"__main__ \['a', 'b'\]"),
    ("unbuffered", "echo 'import sys; print(sys.orig_argv[1:])' >u.py; torchrun u.py", r"\['-u', 'u.py'\]"),
    ("ranks of four", "torchrun --nproc-per-node 4 --no-python sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE' 2>/dev/null | sort",
     "0 0 4 4 0 1\n1 1 4 4 0 1\n2 2 4 4 0 1\n3 3 4 4 0 1"),
    ("95 run-path", "echo 'import os,sys;print(os.getsid(0)==os.getsid(os.getppid()),sys.argv[1:],__name__)' >rp.py; torchrun --run-path $PWD/rp.py '${local_rank}'",
     r"True \['0'\] __main__"),
    ("run-path wins over no-python", "echo 'print(1+1)' >rp.py; torchrun --no-python -m --run-path $PWD/rp.py", "2"),
    ("run-path failure", "echo 'import sys; sys.exit(5)' >rp.py; torchrun --run-path $PWD/rp.py 2>e; echo $?; grep '  exitcode' e; grep FAILED e",
     r"1\n  exitcode  : 5 \(pid: N\) \nrun_script_path FAILED"),
    ("run-path exception", "echo 'raise ValueError(\"boom\")' >rp.py; torchrun --run-path $PWD/rp.py 2>e; echo $?; grep '  exitcode' e; grep -c 'error_file: .*/attempt_0/0/error.json' e; grep -c '  ValueError: boom' e",
     r"1\n  exitcode  : 1 \(pid: N\) \n1\n1"),
]


@pytest.mark.parametrize("shell,pattern", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, pattern):
    pair = bench.pair(shell)
    expect(pair, pattern)
    same(pair)
