"""Warm workers on several hosts: real DDP that grows, loses a host and a worker, and goes on in milliseconds."""
from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from rig import MUSTER, PYTHON, ROOT, Host, Process, Rig, clock

TRAIN = str(ROOT / "bench/warm_train.py")
CONF = "join_timeout=200,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


def node(host: Host, tmp: Path) -> Process:
    return host.start([MUSTER, "run", "--nnodes=2:3", "--max-restarts=5", "--rdzv-backend=c10d", "--rdzv-id=warm",
                       "--rdzv-endpoint=node1:29400", f"--rdzv-conf={CONF}", "--warm", TRAIN],
                      OMP_NUM_THREADS="1", PYTHON_EXEC=PYTHON, STEPS_FILE=str(tmp / "steps"), LOGLEVEL="INFO")


def steps(tmp: Path, rank: int, world: int, old: set[int]) -> list[tuple[float, int]]:
    """Time and pid of each step of that rank in a group of that size, but of old processes."""
    path = tmp / f"steps.{rank}"
    text = path.read_text() if path.exists() else ""
    rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [(float(r[0]), int(r[2])) for r in rows if int(r[3]) == world and int(r[2]) not in old]


def trains(nodes: list[Process], tmp: Path, world: int, old: set[int]) -> tuple[float, set[int]]:
    """Waits until all ranks of a group of that size have finished a step in new processes: when, and all pids so far."""
    by = clock() + 150
    while True:
        rows = [steps(tmp, rank, world, old) for rank in range(world)]
        if all(rows):
            return max(r[0][0] for r in rows), old | {r[-1][1] for r in rows}
        assert all(n.popen.poll() is None for n in nodes), nodes[0].output()
        assert clock() < by, "\n".join(n.output() for n in nodes)
        time.sleep(0.01)


def test_growth_and_loss_with_warm_workers(tmp_path: Path) -> None:
    with Rig(3) as rig:
        nodes = [node(h, tmp_path) for h in rig.hosts[:2]]
        _, old = trains(nodes, tmp_path, 2, set())
        nodes.append(node(rig[2], tmp_path))  # growth
        _, old = trains(nodes, tmp_path, 3, old)
        killed = time.time()
        os.kill(steps(tmp_path, 1, 3, set())[-1][1], signal.SIGKILL)  # a worker
        again, old = trains(nodes, tmp_path, 3, old)
        gone, lost = nodes.pop(), time.time()
        rig[2].signal_all(signal.SIGKILL)  # a host
        rest, _ = trains(nodes, tmp_path, 2, old)
        print(f"to the next step: {again - killed:.3f} s after the kill of a worker, {rest - lost:.3f} s after that of a host")
        assert gone.wait() == -signal.SIGKILL
        for n in nodes:
            assert "ordinary way" not in n.output() and n.output().count("the warm interpreter is ready") == 1, n.output()
            n.signal(signal.SIGTERM)
        for n in nodes:
            assert n.wait() != 0 and n.host.processes() == {}, n.output()
