"""muster.torch's handler: torch's contract for it, and real torchrun with it."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from wheels import ROOT, free_port, run

BIN = Path(sys.executable).parent  # of build/venv: torch and torchrun are there


def python(env: dict[str, str], code: str, *args: object, ok: bool = True):
    return run(sys.executable, "-c", code, *args, env=env, ok=ok)


HANDLER = """
import sys, threading
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError, RendezvousTimeoutError)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

def params(run_id, n, **more):
    return RendezvousParameters("muster", f"127.0.0.1:{sys.argv[1]}", run_id, n, n,
                                local_addr="127.0.0.1", **more)

a = get_rendezvous_handler(params("job", 2))
assert a.get_backend() == "muster" and a.get_run_id() == "job" and a.use_agent_store is True
b = get_rendezvous_handler(params("job", 2, is_host="false"))
got = {}
other = threading.Thread(target=lambda: got.update(b=b.next_rendezvous()))
other.start()
got["a"] = a.next_rendezvous(); other.join()
assert sorted(g.rank for g in got.values()) == [0, 1]
assert all(g.world_size == 2 for g in got.values())
got["a"].store.set("k", "v")
assert got["b"].store.get("k") == b"v"                           # one store, torch's own
infos = {(g.bootstrap_store_info.master_addr, g.bootstrap_store_info.master_port)
         for g in got.values()}
assert len(infos) == 1 and infos.pop()[1] > 0
assert a.num_nodes_waiting() == 0 and not a.is_closed()
alone = get_rendezvous_handler(params("late", 3, join_timeout=1, is_host="false"))
try:
    alone.next_rendezvous()
except RendezvousTimeoutError:
    pass
else:
    raise AssertionError("joined alone")
b.set_closed()
assert b.is_closed()
try:
    a.next_rendezvous()
except RendezvousClosedError:
    pass
else:
    raise AssertionError("joined a closed rendezvous")
assert a.is_closed() and b.shutdown() is True and a.shutdown() is True
try:
    get_rendezvous_handler(params("x", 1, join_timeout="soon"))
except ValueError as e:
    assert "does not represent a valid integer value" in str(e)
else:
    raise AssertionError("a wrong option was taken")
print("all well")
"""


def test_the_handler_keeps_torchs_contract(env: dict[str, str]) -> None:
    done = python(env, HANDLER, free_port())
    assert done.stdout == "all well\n"


def test_torchrun_with_the_plug_in_and_muster_run_in_one_group(env, tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text("import os, torch.distributed as d; d.init_process_group('gloo')\n"
                      "import torch; t = torch.ones(1); d.all_reduce(t)\n"
                      "print('rank', d.get_rank(), 'sum', int(t), flush=True)\n"
                      "d.destroy_process_group()\n")
    port = free_port()
    common = ["--nnodes=3", "--nproc-per-node=1", f"--rdzv-endpoint=127.0.0.1:{port}",
              "--rdzv-id=mixed", "--local-addr=127.0.0.1", script]
    commands = [[BIN / "torchrun", "--rdzv-backend=muster", *common],
                [ROOT / "build/muster", "run", "--rdzv-backend=c10d", *common],
                [BIN / "torchrun", "--rdzv-backend=c10d", *common]]
    nodes = [subprocess.Popen([str(c) for c in argv], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT,
                              env=dict(env, OMP_NUM_THREADS="1", PYTHON_EXEC=sys.executable))
             for argv in commands]
    out = [n.communicate(timeout=120)[0] for n in nodes]
    assert [n.returncode for n in nodes] == [0, 0, 0], "\n----\n".join(out)
    lines = sorted(line for text in out for line in text.splitlines() if "sum" in line)
    assert lines == [f"rank {r} sum 3" for r in range(3)]
