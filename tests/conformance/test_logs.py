"""Log directories, redirects, tee, filters, and the agent's own messages."""
from __future__ import annotations

import pytest

from conform import expect, same

TREE = "; find L -printf '%y %m %P\\n' | sort"
TWO = "torchrun --nproc-per-node 2"

ROWS = [
    ("51 layout", "torchrun --log-dir L2 -r 3 --no-python echo hi; find L2 -type f | sort",
     "L2/UUID_SFX/attempt_0/0/stderr.log\nL2/UUID_SFX/attempt_0/0/stdout.log"),
    ("51b whole tree", "torchrun --log-dir L -r 3 --no-python echo hi; find L -type d -printf '%y %m %P\\n' -o -printf '%y %P\\n' | sort",
     "d 700 UUID_SFX\nd 755 \nd 755 UUID_SFX/attempt_0\nd 755 UUID_SFX/attempt_0/0\nf .*stderr.log\nf .*stdout.log"),
    ("51c tree under umask", "umask 077; torchrun --log-dir L -r 1 --no-python echo hi" + TREE, "d 700 .*f 600 .*"),
    ("51d no redirects, still a tree", "torchrun --log-dir L --no-python echo hi" + TREE, "hi\nd 700 UUID_SFX\n.*"),
    ("51e parents are made", "torchrun --log-dir a/b/L -r 1 --no-python echo hi; cat a/b/L/*/attempt_0/0/stdout.log", "hi"),
    ("51f default place", "torchrun -r 1 --no-python echo hi; cd .tmp; find . -type f", "./torchelastic_SFX/UUID_SFX/attempt_0/0/stdout.log"),
    ("52 0700", "torchrun --log-dir L2 -r 3 --no-python echo hi; stat -c %a L2/*", "700"),
    ("53 map", TWO + " --log-dir L3 -r 0:1 --no-python sh -c 'echo r$RANK' 2>/dev/null", "r1"),
    ("53b map beyond nproc", "torchrun --log-dir L -r 0:2,5:3 --no-python sh -c 'echo o; echo e >&2'; cat L/*/attempt_0/0/*", "o\ne"),
    ("53c last wins in a map", "torchrun --log-dir L -r 0:3,0:0 --no-python echo hi", "hi"),
    ("54 tee prefix", "torchrun -t 1 --role tr --no-python echo hi", r"\[tr0\]:hi"),
    ("54b tee stderr", "torchrun -t 2 --no-python sh -c 'echo o; echo e >&2' 2>e; cat e", r"o\n\[default0\]:e"),
    ("54c tee both", "torchrun --log-dir L -t 3 --no-python sh -c 'echo o; echo e >&2' 2>e; cat e; cat L/*/attempt_0/0/std*.log",
     r"\[default0\]:o\n\[default0\]:e\ne\no"),
    ("54d tee map", TWO + " --log-dir L -t 1:1 --no-python sh -c 'echo r$RANK' 2>/dev/null | sort; ls L/*/attempt_0/*", r".*"),
    ("54e tee and redirect", "torchrun --log-dir L -t 1 -r 2 --no-python sh -c 'echo o; echo e >&2'; cat L/*/attempt_0/0/stderr.log", r"\[default0\]:o\ne"),
    ("55 template", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='<${rank}/$local_rank/${role_name}> ' torchrun -t 1 --no-python echo hi", "<0/0/default> hi"),
    ("55b empty template", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE= torchrun -t 1 --no-python echo hi", r"\[default0\]:hi"),
    ("55c odd template", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='$x $$ ${ ' torchrun -t 1 --no-python echo hi", r"\$x \$ \$\{ hi"),
    ("56 CR", r"torchrun -t 1 --no-python printf 'a\rb\r\nc'", r"\[default0\]:a\n\[default0\]:b\n\[default0\]:c"),
    ("56b no newline at the end", r"torchrun -t 1 --no-python printf 'a\nb' | od -An -c", ".*"),
    ("56c empty lines", r"torchrun -t 1 --no-python printf '\n\na\n'", r"\[default0\]:\n\[default0\]:\n\[default0\]:a"),
    ("56d nothing", "torchrun -t 3 --no-python true; echo $?", "0"),
    ("57 no UTF-8", r"torchrun -t 1 --no-python printf '\377\n' | od -An -c", r".*357 277 275  \\n"),
    ("57b broken UTF-8", r"torchrun -t 1 --no-python printf 'a\303\n\342\202b\n\360\237x\300\200\n' | od -An -tx1", ".*"),
    ("57c good UTF-8", "torchrun -t 1 --no-python printf 'é€😀\n'", r"\[default0\]:é€😀"),
    ("57d NUL bytes", r"torchrun -t 1 --no-python printf 'a\000b\n' | od -An -c", ".*"),
    ("57e the file keeps the bytes", r"torchrun --log-dir L -t 1 --no-python printf '\377\r\n' >/dev/null; od -An -c L/*/attempt_0/0/stdout.log", r".*377  \\r  \\n"),
    ("57f form feeds and separators", r"torchrun -t 1 --no-python printf 'a\fb\vc\034d\302\205e\342\200\250f\n' | od -An -c", ".*"),
    ("58 console filter", TWO + " --local-ranks-filter 1 --no-python sh -c 'echo r$RANK' 2>/dev/null", "r1"),
    ("58b of nobody", TWO + " --local-ranks-filter 7 --no-python sh -c 'echo r$RANK; echo e >&2' 2>/dev/null; echo $?", "0"),
    ("58c stderr as well", TWO + " --local-ranks-filter 1 --no-python sh -c 'echo r$RANK >&2' 2>&1", "r1"),
    ("59 filter keeps files", TWO + " --log-dir L4 -t 1 --local-ranks-filter 1 --no-python sh -c 'echo r$RANK' 2>/dev/null; cat L4/*/attempt_0/0/stdout.log",
     r"\[default1\]:r1\nr0"),
    ("59b filter and redirect", TWO + " --log-dir L -r 1 --local-ranks-filter 1 --no-python sh -c 'echo r$RANK' 2>/dev/null; cat L/*/attempt_0/*/stdout.log", "r0\nr1"),
    ("60 duplicates", r"torchrun --log-dir L5 -t 1 --duplicate-stdout-filters 'a,,b,zz' --no-python printf 'xa,by\nno\nzz\n' >/dev/null; cat L5/*/attempt_0/filtered_stdout.log",
     r"\[default0\]:xa,by\n\[default0\]:zz"),
    ("60b stderr duplicates", r"torchrun --log-dir L5 -t 2 --duplicate-stderr-filters 'zz' --no-python sh -c 'echo no >&2; echo zz >&2' 2>/dev/null; cat L5/*/attempt_0/filtered_stderr.log; ls L5/*/attempt_0",
     r"\[default0\]:zz\n0\nfiltered_stderr.log"),
    ("60c empty needle takes all", r"torchrun --log-dir L5 -t 1 --duplicate-stdout-filters '' --no-python printf 'a\nb\n' >/dev/null; cat L5/*/attempt_0/filtered_stdout.log",
     r"\[default0\]:a\n\[default0\]:b"),
    ("61 duplicates need tee", "torchrun --log-dir L6 -r 1 --duplicate-stdout-filters x --no-python echo x; wc -c <$(echo L6/*/attempt_0/filtered_stdout.log)", "0"),
    ("61b duplicates on /dev/null", "torchrun --log-dir /dev/null -t 1 --duplicate-stdout-filters x --no-python echo x 2>&1 | tail -1",
     r"ERROR: \[Errno 20\] Not a directory: '/dev/null/filtered_stdout.log'"),
    ("62 bad word", "torchrun -r 4 x.py 2>&1 | tail -1", r"ERROR: 4 does not match: <\^\[0123\]\$> or .*"),
    ("63 one digit", "torchrun -r 10:1 x.py 2>&1 | tail -1", "ERROR: 10:1 does not match: .*"),
    ("log dir of two runs", "for i in 1 2; do torchrun --log-dir L -r 1 --no-python echo $i; done; cat L/*/attempt_0/0/stdout.log | sort; ls L | wc -l", "1\n2\n2"),
    ("run id names the directory", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id jobx --log-dir L -r 1 --no-python true; ls L", "jobx_SFX"),
    ("static names the directory", "torchrun --master-port $PORT0 --log-dir L -r 1 --no-python true; ls L", "none_SFX"),
    ("a slash in the id", "torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id a/b --log-dir L -r 1 --no-python true 2>/dev/null; echo $?", "1"),
    ("log dir not writable", "touch f; torchrun --log-dir f/x -r 1 --no-python true 2>e; echo $?; tail -1 e", r"1\nERROR: \[Errno 20\] Not a directory: 'f/x'"),
    # In one write: of a line that comes in pieces torchrun prefixes each that it happens to read.
    ("long lines", "torchrun -t 1 --no-python sh -c '(head -c 300000 /dev/zero | tr \"\\0\" x; echo) > f; dd if=f bs=300001 2>/dev/null' | wc", r"\s*1\s+1\s+300012"),
    ("many lines", "seq 20000 > f; torchrun -t 1 --no-python dd if=f bs=200000 2>/dev/null | md5sum", ".*"),
    ("tee of two, order within each", TWO + " -t 1 --no-python sh -c 'for i in 1 2 3; do echo $RANK.$i; done' 2>/dev/null | sort -s -k1,1.10", r"(\[default0\]:0\.\d\n?){3}(\[default1\]:1\.\d\n?){3}"),
    ("TMPDIR missing", "TMPDIR=$PWD/none torchrun -r1 --no-python sh -c 'echo $TORCHELASTIC_ERROR_FILE >where'; echo $?; "
     r"rm -r $(sed 's,\(/torchelastic_[^/]*\)/.*,\1,' where)", "0"),
]


@pytest.mark.parametrize("shell,pattern", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, pattern):
    pair = bench.pair(shell)
    expect(pair, pattern)
    same(pair)
