"""Groups of our nodes and torch's on etcd: the backends etcd and etcd-v2."""
from __future__ import annotations

import os
import subprocess
import time
import uuid

import pytest
from etcd_server import BUILD, ROOT, Etcd
from etcd_nodes import Node, TorchHost
from patience import clock

BACKENDS = ["etcd", "etcd-v2"]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="module")
def torch_host():
    host = TorchHost()
    yield host
    host.close()


@pytest.fixture
def make(etcd, torch_host, request):
    """make("ours" or "torch", backend, run_id, (min, max)): a node."""
    ours: list[Node] = []

    def new(kind: str, backend: str, run_id: str, nodes: tuple[int, int],
            conf: str = ""):
        if kind == "torch":
            return torch_host.node(backend, etcd.endpoint, run_id, nodes, conf)
        ours.append(Node(backend, etcd.endpoint, run_id, nodes, conf))
        return ours[-1]

    yield new
    for node in ours:
        node.kill()


def fresh() -> str:
    return uuid.uuid4().hex[:8]


def check_round(answers: list, world: int) -> None:
    assert [a.what() for a in answers] == ["joined"] * len(answers), [a.text for a in answers]
    assert {a.world for a in answers} == {world}
    assert sorted(a.rank for a in answers) == list(range(world))
    assert len({a.address for a in answers}) == 1


@pytest.mark.parametrize("first", ["ours", "torch"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_nodes_each_way(make, backend, first):
    run = fresh()
    a = make(first, backend, run, (2, 2))
    b = make("torch" if first == "ours" else "ours", backend, run, (2, 2))
    a.send("next")
    time.sleep(0.5)  # so that a is the first; either order must do
    b.send("next")
    check_round([a.answer(), b.answer()], 2)
    # One store for the group: each reads what the other wrote.
    assert a("set", "from_a", "1").what() == "done"
    assert b("get", "from_a").text == "value 1"
    assert b("set", "from_b", "2").what() == "done"
    assert a("get", "from_b").text == "value 2"
    # Closing is seen by the other.
    assert a("shutdown").what() == "done"
    end = clock() + 30
    while b("closed").text != "closed 1":
        assert clock() < end
        time.sleep(0.1)
    assert b("next").text.startswith(("failed MUSTER_ECLOSED", "failed RendezvousClosedError"))


@pytest.mark.parametrize("late", ["ours", "torch"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_late_joiner(make, backend, late):
    # torch sleeps a second between tries: a shorter last call may end without it.
    run, conf = fresh(), "last_call_timeout=6"
    first = make("torch" if late == "ours" else "ours", backend, run, (1, 2), conf)
    first.send("next")
    check_round([first.answer()], 1)
    second = make(late, backend, run, (1, 2), conf)
    second.send("next")
    end = clock() + 30
    while first("waiting").text != "waiting 1":
        assert clock() < end
        time.sleep(0.1)
    first.send("next")
    check_round([first.answer(), second.answer()], 2)


@pytest.mark.parametrize("victim", ["ours", "torch"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_member(make, backend, victim):
    run = fresh()
    conf = "last_call_timeout=10"  # all are to be in the first round, on a slow machine too
    if backend == "etcd-v2":
        conf += ",keep_alive_interval=1,keep_alive_max_attempt=4"
    nodes = [make(kind, backend, run, (2, 3), conf) for kind in ("ours", "ours", "torch")]
    for n in nodes:
        n.send("next")
    check_round([n.answer() for n in nodes], 3)
    dead = nodes[0] if victim == "ours" else nodes[2]
    rest = [n for n in nodes if n is not dead]
    if victim == "ours":
        dead.kill()
    else:
        dead("die")
    # Ours are told; torch's agent would learn it from its workers.
    nodes[1].wait_news("lost")
    for n in rest:
        n.send("next")
    answers = [n.answer(90) for n in rest]
    assert [x.what() for x in answers] == ["joined", "joined"], [x.text for x in answers]
    assert {x.world for x in answers} == {2}
    assert sorted(x.rank for x in answers) == [0, 1]


WORKER = """
import os, sys
os.write(1, f"worker {os.environ['RANK']} {os.environ['WORLD_SIZE']}\\n".encode())
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_launchers(etcd, backend, tmp_path):
    """muster run beside the real torchrun, from the command line to the exit code."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    run = fresh()
    args = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", backend,
            "--rdzv-endpoint", etcd.endpoint, "--rdzv-id", run, "--local-addr", "127.0.0.1",
            str(script)]
    env = dict(os.environ, PATH=f"{ROOT}/build/venv/bin:{os.environ['PATH']}")
    procs = [subprocess.Popen(cmd + args, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=env)
             for cmd in ([BUILD / "muster", "run"], ["torchrun"])]
    outs = [p.communicate(timeout=120) for p in procs]
    assert [p.returncode for p in procs] == [0, 0], outs
    ranks = sorted(line for out, _ in outs for line in out.splitlines() if "worker" in line)
    assert ranks == [f"worker {i} 4" for i in range(4)]
