"""No worker of an old world beside a new one: nodes that are cut off, on real networks.

The workers write down until when they lived, and those of whoever is cut off ignore SIGTERM. All hosts are on this
machine, so the times compare.
"""
from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import NamedTuple, Sequence

import pytest
from rig import MUSTER, PYTHON, Process, Rig
from serving import Job, now

BEAT = str(Path(__file__).with_name("serve_beat.py"))


class Life(NamedTuple):
    up: float
    world: int
    host: str
    rank: int
    last: float


def lives(tmp: Path) -> list[Life]:
    found = []
    for path in tmp.glob("beat-*"):
        words = path.read_text().split()
        if len(words) == 5:
            found.append(Life(float(words[0]), int(words[1]), words[2], int(words[3]), float(words[4])))
    return sorted(found)


def check(tmp: Path, cut_off: str, at: float) -> None:
    """The workers on the host that was cut off at that time were gone before any of a later world began."""
    old = [w for w in lives(tmp) if w.host == cut_off and w.up < at]
    new = [w for w in lives(tmp) if w.up > at]
    assert old and new, lives(tmp)
    assert max(w.last for w in old) < min(w.up for w in new), f"cut off at {at}: {old} beside {new}"


@pytest.mark.parametrize("conf", ["", "keep_alive_interval=1,keep_alive_max_attempt=3,lease_ttl=60"])
def test_a_node_that_is_cut_off_from_etcd(tmp_path: Path, conf: str) -> None:
    """First the one with the coordinator and rank 0, then another. With a long lease, heartbeats tell."""
    with Rig(3) as rig:
        job = Job(rig, tmp_path, f"--rdzv-conf=join_timeout=300{',' if conf else ''}{conf}", script=BEAT, nnodes="1:3")
        job.start()
        _, master = job.round(range(3), 0)
        first = next(i for i in range(3) if rig[i].name == master)
        for who in (first, (first + 1) % 3):
            deaf = tmp_path / f"deaf-{rig[who].name}"
            deaf.touch()
            at = now()
            rig[who].link(up=False)
            job.round([i for i in range(3) if i != who], at)
            check(tmp_path, rig[who].name, at)
            assert "cut off from etcd's majority" in job.nodes[who].output(), job.said()
            deaf.unlink()
            before = now()
            rig[who].link(up=True)
            job.round(range(3), before)
        job.end()


def start(rig: Rig, tmp: Path, which: Sequence[int], hosted: str = "1") -> list[Process]:
    conf = f"join_timeout=120,keep_alive_interval=1,keep_alive_max_attempt=4,last_call_timeout=1,hosted={hosted}"
    return [rig[i].start([MUSTER, "run", "--nnodes=1:3", "--nproc-per-node=1", "--rdzv-id=job", "--rdzv-backend=c10d",
                          "--rdzv-endpoint=node1:29400", f"--rdzv-conf={conf}", BEAT, str(tmp)],
                         PYTHON_EXEC=PYTHON, OMP_NUM_THREADS="1") for i in which]


def wait_for_world(tmp: Path, size: int, after: float, nodes: Sequence[Process], timeout: float = 90) -> None:
    end = now() + timeout
    while len({w.host for w in lives(tmp) if w.up > after and w.world == size}) < size:
        assert now() < end, f"{lives(tmp)}\n" + "\n".join(n.output()[-3000:] for n in nodes)
        time.sleep(0.02)


@pytest.mark.parametrize("hosted", ["1", "0"])
def test_a_node_that_is_cut_off_from_a_store(tmp_path: Path, hosted: str) -> None:
    """On a coordinator of ours, and where all nodes read and write the state, as on torchrun's stores."""
    with Rig(3) as rig:
        nodes = start(rig, tmp_path, range(3), hosted)
        wait_for_world(tmp_path, 3, 0, nodes)
        (tmp_path / "deaf-node3").touch()
        at = now()
        rig.part(rig.hosts[:2], rig.hosts[2:])
        wait_for_world(tmp_path, 2, at, nodes)
        check(tmp_path, "node3", at)
        (tmp_path / "stop").touch()
        assert nodes[0].wait(60) == 0 and nodes[1].wait(60) == 0, nodes[0].output() + nodes[1].output()
        assert nodes[2].wait(120) == 1, nodes[2].output()


@pytest.mark.parametrize("way", ["to", "from"])
def test_a_cable_that_carries_one_way(tmp_path: Path, way: str) -> None:
    """What the last node sends to the host gets lost, or what the host sends to it. It says what it knows, and no more."""
    with Rig(3, ipv6=False) as rig:
        nodes = start(rig, tmp_path, range(3))
        wait_for_world(tmp_path, 3, 0, nodes)
        (tmp_path / "deaf-node3").touch()
        deaf, mute = (rig[2], rig[0]) if way == "from" else (rig[0], rig[2])
        at = now()
        mute.run(["ip", "neigh", "replace", deaf.ip4, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"])
        wait_for_world(tmp_path, 2, at, nodes)
        check(tmp_path, "node3", at)
        (tmp_path / "stop").touch()
        assert nodes[0].wait(60) == 0 and nodes[1].wait(60) == 0, nodes[0].output() + nodes[1].output()
        assert nodes[2].wait(120) == 1, nodes[2].output()
        said = nodes[2].output()
        assert "muster: this node was cut off: no sign of life for " in said, said
        assert "from node1, which hosted the rendezvous" in said and "was lost" not in said, said


@pytest.mark.parametrize("hosted", ["1", "0"])
def test_a_node_whose_agent_is_stopped(tmp_path: Path, hosted: str) -> None:
    """Its guard ends the workers before the others begin; once it goes on it learns that, and joins again."""
    with Rig(3) as rig:
        nodes = start(rig, tmp_path, range(3), hosted)
        wait_for_world(tmp_path, 3, 0, nodes)
        at = now()
        nodes[2].signal(signal.SIGSTOP)
        wait_for_world(tmp_path, 2, at, nodes)
        check(tmp_path, "node3", at)
        before = now()
        nodes[2].signal(signal.SIGCONT)
        wait_for_world(tmp_path, 3, before, nodes)
        (tmp_path / "stop").touch()
        assert [n.wait(60) for n in nodes] == [0, 0, 0], "\n".join(n.output() for n in nodes)
        said = nodes[2].output()
        assert "was stopped for longer than a node may be silent" in said, said
        assert "unreachable" not in said, said


def test_a_whole_machine_that_is_stopped(tmp_path: Path) -> None:
    """Agent, guard and workers, as by a suspended machine: nobody is left to end them before it goes on."""
    with Rig(3) as rig:
        nodes = start(rig, tmp_path, range(3))
        wait_for_world(tmp_path, 3, 0, nodes)
        at = now()
        rig[2].signal_all(signal.SIGSTOP)
        wait_for_world(tmp_path, 2, at, nodes)
        before = now()
        rig[2].signal_all(signal.SIGCONT)
        wait_for_world(tmp_path, 3, before, nodes)
        old = [w for w in lives(tmp_path) if w.host == "node3" and w.up < at]
        new = [w for w in lives(tmp_path) if w.world == 3 and w.up > before]
        assert max(w.last for w in old) < min(w.up for w in new)
        (tmp_path / "stop").touch()
        assert [n.wait(60) for n in nodes] == [0, 0, 0], "\n".join(n.output() for n in nodes)
        assert "joins again" in nodes[2].output(), nodes[2].output()


def test_a_job_of_one_machine_is_left_alone(tmp_path: Path) -> None:
    with Rig(1) as rig:
        node = rig[0].start([MUSTER, "run", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400",
                             "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2", BEAT, str(tmp_path)],
                            PYTHON_EXEC=PYTHON, OMP_NUM_THREADS="1")
        wait_for_world(tmp_path, 1, 0, [node])
        node.signal(signal.SIGSTOP)
        time.sleep(4)  # twice what a node may be silent
        before = now()
        wait_for_last(tmp_path, before)
        node.signal(signal.SIGCONT)
        (tmp_path / "stop").touch()
        assert node.wait(60) == 0, node.output()
        assert len(lives(tmp_path)) == 1


def wait_for_last(tmp: Path, after: float) -> None:
    end = now() + 60
    while max(w.last for w in lives(tmp)) <= after:
        assert now() < end, lives(tmp)
        time.sleep(0.02)
