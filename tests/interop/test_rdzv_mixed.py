"""Groups of `muster run` and real torchrun nodes on the c10d backend."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from patience import clock

from rdzv_nodes import MUSTER, VENV, Node, free_port

pytest.importorskip("torch")
WORKER = Path(__file__).with_name("mixed_worker.py")
PATIENCE = 90


class Agent:
    """One `muster run` or torchrun, its output in a file that can be waited on."""

    def __init__(self, kind, tmp_path, name, *, port, nnodes, want, conf="", nproc=1, env=None):
        self.out = tmp_path / f"{name}.out"
        command = [str(MUSTER), "run"] if kind == "ours" else [str(VENV / "torchrun")]
        command += [f"--nnodes={nnodes}", f"--nproc-per-node={nproc}", "--rdzv-backend=c10d",
                    f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=mixed", f"--local-addr={name}",
                    "--monitor-interval=0.1"]
        if conf:
            command.append(f"--rdzv-conf={conf}")
        environ = dict(os.environ, OMP_NUM_THREADS="1", PATH=f"{VENV}:{os.environ['PATH']}", **(env or {}))
        with self.out.open("w") as out:
            self.process = subprocess.Popen([*command, str(WORKER), str(want)], stdout=out,
                                            stderr=subprocess.STDOUT, env=environ, start_new_session=True)

    def text(self):
        return self.out.read_text()

    def workers(self):
        """(rank, world, master, group rank) of each worker that has spoken."""
        found = re.findall(r"WORKER (\d+) (\d+) (\S+) (\d+)", self.text())
        return [(int(r), int(w), m, int(g)) for r, w, m, g in found]

    def until(self, what, patience=PATIENCE):
        by = clock() + patience
        while not what(self):
            assert clock() < by, f"{self.out.name}: {self.text()[-3000:]}"
            assert self.process.poll() is None or what(self), f"{self.out.name}: {self.text()[-3000:]}"
            time.sleep(0.05)

    def wait(self, patience=PATIENCE):
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.out.name} goes on: {self.text()[-3000:]}") from None

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


@pytest.fixture
def agents(tmp_path):
    made = []

    def make(kind, name, **kwargs):
        made.append(Agent(kind, tmp_path, name, **kwargs))
        return made[-1]

    yield make
    for agent in made:
        agent.end()


def hosting(agent, port):
    """The first agent listens: others started now are its clients."""
    import socket
    by = clock() + PATIENCE
    while clock() < by:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert agent.process.poll() is None, agent.text()
            time.sleep(0.05)
    raise AssertionError(agent.text())


def all_agree(members, world):
    said = [m.workers()[-1] for m in members]
    assert sorted(s[0] for s in said) == list(range(world)), said
    assert {s[1] for s in said} == {world}, said
    assert len({s[2] for s in said}) == 1, said


@pytest.mark.parametrize("kinds", [("ours", "torch"), ("torch", "ours"),
                                   ("ours", "torch", "ours", "torch"), ("torch", "ours", "torch", "ours"),
                                   ("ours", "torch", "ours", "ours"), ("torch", "ours", "ours", "ours")],
                         ids="-".join)
def test_one_round(agents, kinds):
    """The first hosts; every node must be reachable by its name, so all are localhost's."""
    port = free_port()
    names = ["127.0.0.1", "localhost", "127.0.0.2", "127.0.0.3"]
    members = []
    for kind, name in zip(kinds, names):
        members.append(agents(kind, name, port=port, nnodes=len(kinds), want=len(kinds)))
        if len(members) == 1:
            hosting(members[0], port)
    assert [m.wait() for m in members] == [0] * len(kinds), "".join(m.text()[-800:] for m in members)
    all_agree(members, len(kinds))
    order = sorted(range(len(kinds)), key=lambda i: names[i])
    assert [members[i].workers()[-1][3] for i in order] == list(range(len(kinds)))


@pytest.mark.parametrize("first,second", [("ours", "torch"), ("torch", "ours"), ("ours", "ours")])
def test_late_joiner(agents, first, second):
    """MIN:MAX: a job of one grows to two; torchrun alone cannot do that with its shared store."""
    port = free_port()
    conf = "last_call_timeout=4"
    a = agents(first, "127.0.0.1", port=port, nnodes="1:2", want=2, conf=conf)
    a.until(lambda a: a.workers())
    assert a.workers()[0][1] == 1
    b = agents(second, "localhost", port=port, nnodes="1:2", want=2, conf=conf)
    assert [b.wait(), a.wait()] == [0, 0], a.text()[-2000:] + b.text()[-2000:]
    all_agree([a, b], 2)


@pytest.mark.parametrize("second", ["ours", "torch"])
def test_killed_node(agents, tmp_path, second):
    """The survivor forms a group of one without waiting for a worker to fail."""
    port = free_port()
    conf = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
    go = tmp_path / "go"
    a = agents("ours", "127.0.0.1", port=port, nnodes="1:2", want=f"1@{go}", conf=conf)
    hosting(a, port)
    b = agents(second, "localhost", port=port, nnodes="1:2", want=f"1@{go}", conf=conf)
    for m in (a, b):
        m.until(lambda m: m.workers() and m.workers()[-1][1] == 2)
    go.touch()
    os.killpg(b.process.pid, signal.SIGKILL)
    assert a.wait() == 0
    assert a.workers()[-1][:2] == (0, 1)


def test_an_ended_member_makes_room(agents, tmp_path):
    """SIGTERM of our agent beside torchrun, which hosts: its place is handed back, so the next one
    need not wait until it expires (which would take three minutes here)."""
    port, go = free_port(), tmp_path / "go"
    conf = "last_call_timeout=3,keep_alive_interval=60,keep_alive_max_attempt=3"
    host = agents("torch", "127.0.0.1", port=port, nnodes="1:2", want=f"2@{go}", conf=conf)
    hosting(host, port)
    first = agents("ours", "localhost", port=port, nnodes="1:2", want=f"2@{go}", conf=conf)
    for m in (host, first):
        m.until(lambda m: m.workers() and m.workers()[-1][1] == 2)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 1, first.text()
    assert "SIGTERM" in first.text() and host.process.poll() is None, first.text()
    rounds = len(host.workers())
    second = agents("ours", "127.0.0.2", port=port, nnodes="1:2", want=f"2@{go}", conf=conf)
    for m in (host, second):
        m.until(lambda m: len(m.workers()) > (rounds if m is host else 0) and m.workers()[-1][1] == 2)
    go.touch()
    assert [second.wait(), host.wait()] == [0, 0], host.text()[-2000:] + second.text()[-2000:]
    all_agree([host, second], 2)


def test_an_ended_host_leaves_nobody_hanging(agents):
    """SIGTERM of our agent that hosts: torchrun's ends with it, at once, as it would with its own."""
    port = free_port()
    host = agents("ours", "127.0.0.1", port=port, nnodes=2, want=99)
    hosting(host, port)
    other = agents("torch", "localhost", port=port, nnodes=2, want=99)
    for m in (host, other):
        m.until(lambda m: m.workers() and m.workers()[-1][1] == 2)
    host.process.send_signal(signal.SIGTERM)
    assert host.wait() == 1, host.text()
    assert other.wait() == 1, other.text()
    assert "RendezvousConnectionError" in other.text(), other.text()[-2000:]


def close_run(port):
    node = Node(f"127.0.0.1:{port}", "mixed", (1, 1), "y", "is_host=0")
    try:
        assert node.ask("close") == "ok"
    finally:
        node.end()


def test_spare_ends_well(agents):
    """torchrun's spare ends with code 1 and an AttributeError when the run is closed."""
    port = free_port()
    a = agents("ours", "127.0.0.1", port=port, nnodes=1, want=99)
    a.until(lambda a: a.workers())
    spare = agents("ours", "localhost", port=port, nnodes=1, want=1)
    time.sleep(1)
    assert not spare.workers() and spare.process.poll() is None
    close_run(port)
    assert spare.wait() == 0, spare.text()


def test_closed_run(agents):
    """Whoever comes when the run is over is told so, and at once."""
    port = free_port()
    a = agents("ours", "127.0.0.1", port=port, nnodes=1, want=99)
    a.until(lambda a: a.workers())
    close_run(port)
    late = agents("ours", "localhost", port=port, nnodes=1, want=1)
    assert late.wait() == 1
    assert "closed" in late.text() and "'mixed'" in late.text()
