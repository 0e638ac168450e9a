"""TORCH_LOGS_FORMAT and TORCH_LOGS_OUT: the shape of the agent's own messages, and a copy
of them. torch reads these when it is imported, so the real torchrun runs here."""
from __future__ import annotations

import pytest

from conform import expect, same

FAIL = "torchrun --nproc-per-node 2 --no-python sh -c '[ $RANK = 1 ] && exit 3; exec sleep 30' 2>&1 | grep -v '^ \\|^\\[\\|^-\\|^=\\|^F\\|^R\\|^sh\\|ChildFailed'"
LINES = ("Sending process N closing signal SIGTERM", r"failed \(exitcode: 3\) local_rank: 1 \(pid: N\) of binary: sh")
ROWS = [
    ("short, and a copy", f"export TORCH_LOGS_FORMAT=short TORCH_LOGS_OUT=$PWD/copy; {FAIL}; echo copy; cat copy",
     r"WARNING:torch.distributed.elastic.multiprocessing.api:{0}\nERROR:torch.distributed.elastic.multiprocessing.api:{1}\ncopy\n"
     r"WARNING:torch.distributed.elastic.multiprocessing.api:{0}\nERROR:torch.distributed.elastic.multiprocessing.api:{1}"),
    ("a format of one's own", f"export TORCH_LOGS_FORMAT='%(levelname)-8s|%(filename)s:%(lineno)d %(message)s 100%%'; {FAIL}",
     r"WARNING \|api.py:1028 {0} 100%\nERROR   \|api.py:1002 {1} 100%"),
    ("no format", "TORCH_LOGS_FORMAT=x torchrun --no-python touch ran 2>&1 | tail -1; ls ran 2>/dev/null", r"ERROR: Invalid format 'x' for '%' style"),
    ("a file that cannot be", "TORCH_LOGS_OUT=/no/such/file torchrun --no-python touch ran 2>&1 | tail -1; ls ran 2>/dev/null",
     r"ERROR: \[Errno 2\] No such file or directory: '/no/such/file'"),
]


@pytest.mark.parametrize("shell,pattern", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_row(bench, shell, pattern):
    pair = bench.pair(shell, real=True)
    expect(pair, pattern.replace("{0}", LINES[0]).replace("{1}", LINES[1]))
    same(pair)


def test_a_format_that_cannot_be_used(bench):
    """Said once, and the messages are readable all the same."""
    ours = bench.run("TORCH_LOGS_FORMAT='%(bogus)s' torchrun --no-python sh -c 'exit 3' 2>&1 | head -3", "muster").lines()
    assert "TORCH_LOGS_FORMAT: Formatting field not found in record: 'bogus'" in ours[0]
    assert "Messages come in the usual form." in ours[1]
    assert ours[2].startswith("E") and "failed (exitcode: 3)" in ours[2]
