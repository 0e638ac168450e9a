"""The command line: rows 1 to 34 and 42 to 45 of what torchrun's users meet."""
from __future__ import annotations

import pytest

from argparse_words import NEWER
from conform import expect, same

# (name, shell, pattern of the whole normalised output)
ROWS = [
    ("1 help", 'torchrun --help >h 2>e; echo $? $(wc -c <e) "$(head -c 20 h)"', r"0 0 usage: torchrun \[-h\]"),
    ("2 no script", "torchrun 2>e; echo $?; tail -1 e",
     "2\nERROR: the following arguments are required: training_script, training_script_args"),
    ("3 unknown option", "torchrun --bogus x.py 2>e; echo $?; tail -1 e", "2\nERROR: unrecognized arguments: --bogus"),
    ("4 both spellings", "torchrun --nproc_per_node=2 --max-restarts=1 --no_python sh -c 'echo $WORLD_SIZE' 2>/dev/null",
     "2\n2"),
    ("5 ambiguous prefix", "torchrun --max 1 x.py 2>&1 | tail -1",
     "ERROR: ambiguous option: --max could match --max-restarts, --max_restarts"),
    ("6 unique prefix", "torchrun --max- 1 --no_p sh -c 'echo $TORCHELASTIC_MAX_RESTARTS'", "1"),
    ("7 options after the script", "torchrun --no-python echo --nproc-per-node 4 -h", "--nproc-per-node 4 -h"),
    ("8 dashes", "torchrun --no-python echo -- a -- b", "a -- b"),
    ("9 cluster", "torchrun -mr3 json.tool --help; echo $?", "0"),
    ("10 PET default", "PET_NPROC_PER_NODE=2 PET_NO_PYTHON=1 torchrun sh -c 'echo $RANK' 2>/dev/null | sort", "0\n1"),
    ("11 command line wins", "PET_ROLE=a torchrun --role b --no-python sh -c 'echo $ROLE_NAME'", "b"),
    ("12 flag variable", "PET_NO_PYTHON=-3 torchrun echo hi", "hi"),
    ("13 flag variable no number", "PET_STANDALONE=yes torchrun x.py 2>e; echo $?; tail -1 e",
     r"1\nERROR: invalid literal for int\(\) with base 10: 'yes'"),
    ("14 choices of a variable", "PET_START_METHOD=bogus torchrun --no-python true; echo $?", "0"),
    ("15 no variables", "PET_NUMA_BINDING=node PET_LOGS_SPECS=q torchrun --no-python true; echo $?", "0"),
    ("16 bad int", "torchrun --max-restarts=a x.py 2>e; echo $?; tail -1 e",
     "2\nERROR: argument --max-restarts/--max_restarts: invalid int value: 'a'"),
    ("17 negative restarts", "torchrun --max-restarts -1 x.py 2>e; echo $?; tail -1 e", "1\nERROR: max_restarts must be >= 0"),
    ("19 min above max", "torchrun --nnodes=2:1 x.py 2>&1 | tail -1",
     "ERROR: min_nodes must be > 0 and <= max_nodes, got min_nodes=2, max_nodes=1"),
    ("20 unknown word", "torchrun --nproc-per-node=x x.py 2>&1 | tail -1", "ERROR: Unsupported nproc_per_node value: x"),
    ("21 no GPU", "torchrun --nproc-per-node=gpu x.py 2>&1 | tail -1", "ERROR: Cuda is not available."),
    ("21b no XPU", "torchrun --nproc-per-node=xpu x.py 2>&1 | tail -1", "ERROR: Xpu is not available."),
    ("24 OMP", "unset OMP_NUM_THREADS; torchrun --nproc-per-node 2 --no-python sh -c 'echo $OMP_NUM_THREADS' 2>e; grep -c 'run.py:874. Setting OMP_NUM_THREADS environment variable for each process to be 1 in default' e",
     "1\n1\n1"),
    ("25 OMP of one", "unset OMP_NUM_THREADS; torchrun --no-python sh -c 'echo [$OMP_NUM_THREADS]'", r"\[\]"),
    ("26 OMP empty", "OMP_NUM_THREADS= torchrun --nproc-per-node 2 --no-python sh -c 'echo [$OMP_NUM_THREADS]' 2>e; grep -c 'Setting OMP' e",
     r"\[\]\n\[\]\n0"),
    ("27 id of one node", "torchrun --rdzv-id me --no-python sh -c 'echo $TORCHELASTIC_RUN_ID'", "UUID"),
    ("28 master port", "torchrun --master-port $PORT0 --no-python sh -c 'echo $MASTER_ADDR:$((MASTER_PORT-PORT0)) $TORCHELASTIC_RUN_ID'",
     "127.0.0.1:0 none"),
    ("29 master address alone", "torchrun --master-addr no.such --no-python sh -c 'test $MASTER_ADDR != no.such && echo ours'", "ours"),  # ours: 127.0.0.1, see DIFFERENCES.md
    ("30 endpoint port", "torchrun --rdzv-backend c10d --rdzv-endpoint h:99999 x.py 2>&1 | tail -1",
     "ERROR: The port number of the rendezvous endpoint 'h:99999' must be an integer between 0 and 65536."),
    ("31 rdzv-conf", "torchrun --rdzv-conf a x.py 2>&1 | tail -1",
     "ERROR: The rendezvous configuration option 'a' must have a value specified."),
    ("32 brackets", "torchrun --master-addr [::1] --master-port $PORT0 --no-python sh -c 'echo $MASTER_ADDR'", "::1"),
    ("33 local address", "torchrun --local-addr 127.0.0.1 --no-python sh -c 'echo $MASTER_ADDR'", "127.0.0.1"),
    ("34 empty id", "torchrun --rdzv-id= --rdzv-backend c10d --rdzv-endpoint localhost:0 --no-python sh -c 'echo ${#TORCHELASTIC_RUN_ID}' 2>e"
     " | sed 's/3[6-9]/LONG/'; grep -c 'config has no run_id' e", "LONG\n1"),
    ("42 argv of a script", "PYTHON_EXEC=/bin/echo torchrun x.py a", "-u x.py a"),
    ("43 argv of a module", "PYTHON_EXEC=/bin/echo torchrun -m pkg.mod a", "-u -m pkg.mod a"),
    ("44 macros", "torchrun --no-python echo '${local_rank}' '$local_rank' '$$' '$zz' '${'", r"0 0 \$ \$zz \$\{"),
    ("45 no-python and module", "torchrun --no-python -m x 2>&1 | tail -1",
     "ERROR: Don't use both the '--no-python' flag and the '--module' flag at the same time."),
    ("93 launch", "PYTHON_EXEC=/bin/echo launch x.py a 2>/dev/null", "-u x.py --local-rank=0 a"),
    ("94 launch --use-env", "PYTHON_EXEC=/bin/echo launch --use-env x.py a 2>/dev/null", "-u x.py a"),
    # Beyond the checklist.
    ("launch no-python", "launch --no-python x 2>&1 | tail -1; launch --no-python x 2>/dev/null; echo $?",
     "ERROR: When using the '--no-python' flag, you must also set the '--use-env' flag.\n1"),
    ("launch two ranks", "PYTHON_EXEC=/bin/echo launch --nproc-per-node 2 -m m b 2>/dev/null | sort",
     "-u -m m --local-rank=0 b\n-u -m m --local-rank=1 b"),
    ("script named like an option", "cd /; torchrun --no-python -- -x 2>&1 | tail -1", "ERROR: .*'-x'"),
    ("macro in module name", "PYTHON_EXEC=/bin/echo torchrun --nproc-per-node 2 -m 'm$local_rank' 2>/dev/null | sort", "-u -m m0\n-u -m m1"),
    ("macro not in a program's name", "torchrun --no-python './n$local_rank' 2>&1 | tail -1", r"ERROR: .*'\./n\$local_rank'"),
    ("blanks and newlines in arguments", "torchrun --no-python printf '[%s]' 'a b' '' 'c\nd' \"it's\" | od -c | head -3", ".*"),
    ("bytes that are no UTF-8", r"torchrun --no-python printf '%s' $'\xff\xfe' | od -An -tx1", " ff fe"),
    ("empty script", "torchrun '' 2>&1 >/dev/null | tail -1 | grep -c .", "1"),
    ("static without port", "torchrun --rdzv-endpoint localhost x.py 2>&1 | tail -1; torchrun --rdzv-endpoint localhost x.py 2>/dev/null; echo $?",
     "ERROR: port is missing in endpoint: localhost. Try to specify --master-port\n1"),
    ("endpoint host", "torchrun --rdzv-backend c10d --rdzv-endpoint 'a b:1' x.py 2>&1 | tail -1",
     "ERROR: The hostname of the rendezvous endpoint 'a b:1' must be a dot-separated list of labels, an IPv4 address, or an IPv6 address."),
    ("unknown backend", "torchrun --rdzv-backend foo --rdzv-endpoint h:1 x.py 2>&1 | tail -1 | sed 's/ Did you forget.*//'",
     "ERROR: The rendezvous backend 'foo' is not registered."),
    ("join timeout no number", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf join_timeout=x x.py 2>&1 | tail -1",
     "ERROR: The rendezvous configuration option 'join_timeout' does not represent a valid integer value."),
    ("join timeout zero", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf join_timeout=0 x.py 2>&1 | tail -1",
     r"ERROR: The join timeout \(0:00:00\) must be positive."),
    ("read timeout", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf read_timeout=0 x.py 2>&1 | tail -1",
     "ERROR: The read timeout must be a positive integer."),
    ("log-dir is a file", "touch afile; torchrun --log-dir afile --no-python true 2>&1 | tail -1", "ERROR: log_dir: afile is a file"),
    ("negative shutdown timeout", "torchrun --shutdown-timeout=-1 x 2>&1 | tail -1", "ERROR: shutdown_timeout must be non-negative, got -1"),
    ("shutdown variable", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=q torchrun x 2>&1 | tail -1", r"ERROR: invalid literal for int\(\) with base 10: 'q'"),
    ("unknown logs-specs", "torchrun --logs-specs foo x 2>&1 | tail -1", r"ERROR: Could not find entrypoint under 'torchrun.logs_specs\[foo\]' key"),
    ("master_addr note", "torchrun --rdzv-backend c10d --no-python --nproc-per-node q true 2>&1 | head -1",
     r"W\] master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified."),
    ("node_rank note", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --node-rank 2 --no-python echo ok 2>&1",
     r"W\] node_rank is only used for static rdzv_backend. It will be ignored for rdzv_backend=c10d.\nok"),
    ("PET everything", "PET_NNODES=1 PET_ROLE=r PET_MAX_RESTARTS=2 PET_TEE=1 PET_NO_PYTHON=1 torchrun sh -c 'echo $ROLE_NAME $TORCHELASTIC_MAX_RESTARTS'",
     r"\[r0\]:r 2"),
    ("PET log dir", "PET_LOG_DIR=L torchrun --no-python -r1 echo hi; cat L/*/attempt_0/0/stdout.log", "hi"),
    ("signals variable", "PET_SIGNALS_TO_HANDLE=SIGUSR1 torchrun --no-python sh -c 'echo $TORCHELASTIC_SIGNALS_TO_HANDLE'", "SIGUSR1"),
]


@pytest.mark.parametrize("shell,pattern", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, pattern):
    pair = bench.pair(shell)
    if NEWER and "-mr3" in shell:
        pair.torch = pair.muster
    expect(pair, pattern)
    same(pair)


def test_22_cpu_counts_the_mask(bench):
    pair = bench.pair("taskset -c 0 torchrun --nproc-per-node=cpu --no-python sh -c 'echo $WORLD_SIZE'",
                      real=True)
    expect(pair, "1")
    same(pair)
