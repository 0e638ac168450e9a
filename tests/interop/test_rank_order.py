"""--rank-order with real agents: ranks follow the names, the given ranks, Slurm's or
Kubernetes' numbers, in every round, over failing workers and replaced agents."""
from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from patience import clock

ROOT = Path(__file__).resolve().parent.parent.parent
MUSTER = ROOT / "build/muster"
# Writes the rank it got, then waits to be ended or told to fail.
WORKER = ('echo $GROUP_RANK > "$0/$WHO.$$.tmp"; mv "$0/$WHO.$$.tmp" "$0/$WHO.$$.rank"; '
          'while [ ! -e "$0/fail.$WHO" ] && [ ! -e "$0/stop" ]; do sleep 0.05; done; '
          '[ -e "$0/stop" ] || { rm "$0/fail.$WHO"; exit 1; }')

# How an agent with the number n is told of it; names sort the other way round.
ORDERS = {
    "node": lambda n: ([], {}),
    "given": lambda n: ([f"--node-rank={n}"], {}),
    "slurm": lambda n: ([], {"SLURM_NODEID": str(n)}),
    "index": lambda n: ([], {"HOSTNAME": f"train-worker-{n}"}),
}


class Group:
    def __init__(self, order: str, directory: Path) -> None:
        self.order, self.dir = order, directory
        port_file = directory / "port"
        self.store = subprocess.Popen([MUSTER, "store", "--bind", "127.0.0.1", "--port", "0",
                                       "--port-file", port_file], stdout=subprocess.DEVNULL)
        while not (port_file.exists() and port_file.read_text().strip()):
            assert self.store.poll() is None, "muster store ended"
            time.sleep(0.01)
        self.port = port_file.read_text().strip()
        self.agents: dict[int, subprocess.Popen] = {}

    def start(self, n: int) -> None:
        options, extra = ORDERS[self.order](n)
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        env |= {"OMP_NUM_THREADS": "1", "WHO": str(n)} | extra
        self.agents[n] = subprocess.Popen(
            [MUSTER, "run", "--nnodes=3", "--max-restarts=5", "--rdzv-backend=c10d",
             f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=order",
             "--rdzv-conf=is_host=0,join_timeout=120", f"--rank-order={self.order}",
             f"--local-addr=node{9 - n}", "--log-dir=/dev/null", *options, "--no-python",
             "sh", "-c", WORKER, self.dir], env=env)

    def ranks(self) -> dict[int, int]:
        """Waits until three workers have told their ranks, and forgets them."""
        until = clock() + 90
        while len(found := list(self.dir.glob("*.rank"))) < 3:
            assert clock() < until, found
            time.sleep(0.02)
        assert len(found) == 3, found
        out = {int(f.name.split(".")[0]): int(f.read_text()) for f in found}
        for f in found:
            f.unlink()
        return out

    def finish(self) -> None:
        (self.dir / "stop").touch()
        for agent in self.agents.values():
            assert agent.wait(60) == 0

    def close(self) -> None:
        for proc in (*self.agents.values(), self.store):
            if proc.poll() is None:
                proc.send_signal(signal.SIGTERM)
            proc.wait()


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_stay_with_their_numbers(tmp_path, order):
    numbers = [5, 1, 3]  # in this order they start; a gap between two is fine
    want = {1: 0, 3: 1, 5: 2} if order != "node" else {1: 2, 3: 1, 5: 0}
    group = Group(order, tmp_path)
    try:
        for n in numbers:
            group.start(n)
        assert group.ranks() == want

        (tmp_path / "fail.3").touch()  # a worker fails: a new round of the same agents
        assert group.ranks() == want

        group.agents[1].kill()  # an agent dies: another takes its number
        group.agents[1].wait()
        group.start(1)
        assert group.ranks() == want
        group.finish()
    finally:
        group.close()
