"""A child of fork() that inherits stores leaves them to its parent, however it ends: ordinary
ends run Python's finalizers, which close the child's copies."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENV = dict(os.environ, MUSTER_LIBRARY=str(ROOT / "build/libmuster.so.0"),
           PYTHONPATH=str(ROOT / "python/src"))

HEAD = """
import multiprocessing, os, signal, sys
import muster

server = muster.Store("127.0.0.1", 0, serve=True, timeout=60)
client = muster.Store("127.0.0.1", server.port, timeout=60)
file = muster.Store.file(sys.argv[1], world_size=1, timeout=60)
stores = [server, client, client.clone(), client.prefixed("p"), file]
for s in stores:
    s.set("k", "v")
"""

FORK = HEAD + """
pid = os.fork()
if pid == 0:
    signal.alarm(60)  # should it hang
    sys.exit(7)
assert os.waitpid(pid, 0)[1] == 7 << 8
assert [s.get("k") for s in stores] == [b"v"] * len(stores)
print("all well")
"""

USE = HEAD + """
def work(port):
    signal.alarm(60)
    for s in stores:
        try:
            s.get("k")
        except muster.Error as e:
            assert e.code == "MUSTER_EINVAL" and "fork()" in str(e), e
        else:
            raise AssertionError("not refused")
        s.close()
    with muster.Store("127.0.0.1", port, timeout=60) as mine:
        assert mine.add("n", 1) > 0

fork = multiprocessing.get_context("fork")
workers = [fork.Process(target=work, args=(server.port,)) for _ in range(2)]
for w in workers:
    w.start()
for w in workers:
    w.join()
    assert w.exitcode == 0, w.exitcode
assert [s.get("k") for s in stores] == [b"v"] * len(stores) and server.get("n") == b"2"
print("all well")
"""


@pytest.mark.parametrize("script", [FORK, USE], ids=["exit", "multiprocessing"])
def test_the_parents_stores_go_on(script: str, tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", script, tmp_path / "file"], env=ENV,
                         capture_output=True, text=True, timeout=200)
    assert (run.returncode, run.stdout) == (0, "all well\n"), run.stdout + run.stderr
    assert "Exception" not in run.stderr, run.stderr  # __del__ has nothing to say
