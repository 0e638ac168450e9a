"""muster.torch's handler under real torchrun, and under what calls torch's launcher itself."""
from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from wheels import ROOT, free_port, run

sys.path.insert(0, str(ROOT / "tests/interop"))
import etcd_server  # noqa: E402

BIN = Path(sys.executable).parent  # of build/venv: torch and torchrun are there

# gloo's threads may abort an interpreter that goes away under them.
LEAVE = "import os, sys; sys.stdout.flush(); os._exit(0)\n"


def test_torchrun_with_the_plug_in_and_muster_run_in_one_group(env, tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text("import os, torch.distributed as d; d.init_process_group('gloo')\n"
                      "import torch; t = torch.ones(1); d.all_reduce(t)\n"
                      "print('rank', d.get_rank(), 'sum', int(t), flush=True)\n"
                      "d.destroy_process_group()\n" + LEAVE)
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


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_torchrun_with_the_plug_in_has_a_secret(env, tmp_path: Path, backend: str) -> None:
    """`token_file` in --rdzv-conf proves it to a group of `muster run`'s; with another token it does not get in."""
    script, token, other = tmp_path / "t.py", tmp_path / "token", tmp_path / "other"
    script.write_text("import torch, torch.distributed as d; d.init_process_group('gloo')\n"
                      "t = torch.ones(1); d.all_reduce(t); print('sum', int(t), flush=True)\n"
                      "d.destroy_process_group()\n" + LEAVE)
    token.write_text("a-token-that-nobody-else-has-0123456789")
    other.write_text("another-token-of-another-job-9876543210")
    for file in (token, other):
        file.chmod(0o600)
    common = ["--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job",
              "--local-addr=127.0.0.1"]
    plug_in, conf = ("muster", "is_host=0") if backend == "c10d" else ("muster-static", "rank=1")
    rank = ["--node-rank=1"] if backend == "static" else []

    def start(*argv: object) -> subprocess.Popen:
        return subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=dict(env, OMP_NUM_THREADS="1", PYTHON_EXEC=sys.executable))

    ours = start(ROOT / "build/muster", "run", f"--rdzv-backend={backend}", f"--token-file={token}", *common, script)
    nodes = [ours]
    try:
        wrong = start(BIN / "torchrun", f"--rdzv-backend={plug_in}", *rank, *common, f"--rdzv-conf={conf},token_file={other}", script)
        nodes.append(wrong)
        said = wrong.communicate(timeout=120)[0]
        assert wrong.returncode and "it holds another secret: all nodes need the same token" in said, said
        nodes.append(start(BIN / "torchrun", f"--rdzv-backend={plug_in}", *rank, *common, f"--rdzv-conf={conf},token_file={token}",
                           script))
        out = [n.communicate(timeout=120)[0] for n in (nodes[0], nodes[2])]
        assert [nodes[0].returncode, nodes[2].returncode] == [0, 0], "\n----\n".join(out)
        assert sum("sum 2" in text for text in out) == 2
    finally:
        for n in nodes:
            n.kill()


@pytest.mark.parametrize("backend", ["static", "etcd-v2", "etcd-v3", "etcd"])
def test_torchrun_with_each_of_our_backends(env, tmp_path: Path, backend: str) -> None:
    """torch's own agent on our handler; on etcd its C++ works on our store as on its own."""
    script = tmp_path / "t.py"
    script.write_text("import torch, torch.distributed as d; d.init_process_group('gloo')\n"
                      "t = torch.ones(1); d.all_reduce(t); print('sum', int(t), flush=True)\n"
                      "d.destroy_process_group()\n" + LEAVE)
    with contextlib.ExitStack() as stack:
        if backend == "static":
            endpoint = f"127.0.0.1:{free_port()}"
        else:
            endpoint = stack.enter_context(etcd_server.Etcd(tmp_path)).endpoint
        nodes = []
        for rank in range(2):
            nodes.append(subprocess.Popen(
                [str(BIN / "torchrun"), f"--rdzv-backend=muster-{backend}", "--nnodes=2",
                 "--nproc-per-node=1", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job",
                 "--local-addr=127.0.0.1", f"--node-rank={rank}",
                 *([f"--rdzv-conf=rank={rank}"] if backend == "static" else []), str(script)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env=dict(env, OMP_NUM_THREADS="1")))
        try:
            out = [n.communicate(timeout=120)[0] for n in nodes]
        finally:
            for node in nodes:
                node.kill()
    assert [n.returncode for n in nodes] == [0, 0], "\n----\n".join(out)
    assert sum("sum 2" in text for text in out) == 2


STORE = """
import os, sys, threading
from datetime import timedelta
import torch, torch.distributed as d
import muster
from muster.torch import MusterStore
ours = muster.Store(sys.argv[1], int(sys.argv[2]), timeout=60)
store = MusterStore(ours, timedelta(seconds=30))
assert store.timeout == timedelta(seconds=30)
rank = int(sys.argv[3])
view = d.PrefixStore(f"p{rank}", store)  # torch's C++ calls ours
view.set("k", "v"); assert view.get("k") == b"v" and ours.get(f"p{rank}/k") == b"v"
assert view.add("n", 2) == 2 and view.check(["k"]) and not view.check(["no"])
assert view.compare_set("k", "v", "w") == b"w" and view.delete_key("k") and view.num_keys() > 0
view.append("a", "x"); view.append("a", "y"); assert view.get("a") == b"xy"
view.multi_set(["m", "o"], ["1", "2"]); assert view.multi_get(["o", "m"]) == [b"2", b"1"]
try:
    view.wait(["never"], timedelta(milliseconds=50))
except RuntimeError as e:
    assert "never" in str(e)
else:
    raise AssertionError("no timeout")
del ours
d.init_process_group("gloo", store=store, rank=rank, world_size=2)
t = torch.ones(1); d.all_reduce(t); assert int(t) == 2
d.barrier(); d.destroy_process_group()
print("all well")
""" + LEAVE


def test_torch_works_on_our_store(env) -> None:
    server = subprocess.Popen([ROOT / "build/muster", "store", "--bind", "127.0.0.1", "--port", "0"],
                              stdout=subprocess.PIPE, text=True)
    ranks = []
    try:
        port = server.stdout.readline().rsplit(":", 1)[1].strip()
        ranks = [subprocess.Popen([sys.executable, "-c", STORE, "127.0.0.1", port, str(r)], env=env,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for r in range(2)]
        out = [r.communicate(timeout=120)[0] for r in ranks]
    finally:
        for process in (server, *ranks):
            process.kill()
            process.wait()
    assert out == ["all well\n"] * 2


BACKEND = """
import sys
from torch.distributed.elastic.rendezvous import RendezvousParameters
from muster.torch import create_backend
made = [create_backend(RendezvousParameters("muster", f"127.0.0.1:{sys.argv[1]}", "job", 1, 2))
        for _ in range(2)]  # the first serves, the second finds it
(a, _), (b, _) = made
assert a.set_state(b"one")[2] is True and b.get_state()[0] == b"one"
state, token = b.get_state()
assert b.set_state(b"two", token)[2] is True and a.set_state(b"late", token)[2] is False
print("all well")
"""


def test_create_backend(env) -> None:
    assert run(sys.executable, "-c", BACKEND, free_port(), env=env).stdout == "all well\n"


def test_accelerates_own_launcher_with_the_plug_in(env, tmp_path: Path) -> None:
    """`accelerate launch` does not run torchrun but calls it; the plug-in gets in all the same."""
    frameworks = ROOT / "build/frameworks/bin"
    home = tmp_path / "home"
    home.mkdir()
    done = run(frameworks / "accelerate", "launch", "--multi_gpu", "--num_processes=2",
               "--num_machines=1", "--rdzv_backend=muster", f"--main_process_port={free_port()}",
               "--mixed_precision=no", "--dynamo_backend=no",
               ROOT / "tests/frameworks/train_accelerate.py", tmp_path / "state",
               env=dict(env, HOME=str(home), OMP_NUM_THREADS="1"))
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert [line[:len("rank 0 of 2 MULTI_CPU")] for line in said] == [
        "rank 0 of 2 MULTI_CPU", "rank 1 of 2 MULTI_CPU"], done.stderr
