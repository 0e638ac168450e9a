"""One connection of one node breaks, once, at its n-th request: while two nodes start,
restart, grow or end. Nobody ends because of it, nobody waits for a timeout, and what the
workers are told is right.

Here a few n of each; `tests/trials/resets` plays them all."""
from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from cut_proxy import Proxy
from patience import clock
from run_job import MUSTER, free_port

SAY = 'echo "$TORCHELASTIC_RESTART_COUNT $RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT" >> "$0/said.$GROUP_RANK"\n'
SCRIPTS = {
    # Workers that end by themselves: a start and an end.
    "start": SAY,
    # Rank 1 fails once: a restart.
    "restart": SAY + '''[ -e "$0/failed" ] && exit 0
        [ $GROUP_RANK = 1 ] && { until [ -e "$0/runs" ]; do sleep 0.01; done; touch "$0/failed"; exit 3; }
        touch "$0/runs"
        while :; do sleep 0.02; done''',
    # The second node comes when the first one's workers run: a growth.
    "grow": SAY + '''[ $WORLD_SIZE = 2 ] && exit 0
        while :; do sleep 0.02; done''',
}
KEEP_ALIVE = "keep_alive_interval=1,keep_alive_max_attempt=3"
PATIENCE = 60


class Group:
    """Two agents and a store; each agent reaches it through a proxy of its own."""

    def __init__(self, where: Path, story: str, node: int, kind: str, at: int, conf: str = KEEP_ALIVE):
        self.where, self.agents, self.port = where, [], 0
        self.start_store()
        self.proxies = [Proxy(self.port, kind, at if n == node else 0) for n in range(2)]
        self.began = clock()
        for n in range(2):
            if story == "grow" and n == 1:
                self.until(lambda: (where / "said.0").exists())
            self.agents.append(subprocess.Popen(
                [MUSTER, "run", "--nnodes=1:2" if story == "grow" else "--nnodes=2", "--max-restarts=3",
                 "--rdzv-backend=c10d", "--rdzv-id=cut", f"--rdzv-endpoint=127.0.0.1:{self.proxies[n].port}",
                 f"--rdzv-conf=is_host=0,last_call_timeout=1,{conf}", f"--local-addr=127.0.0.{n + 1}",
                 "--log-dir=/dev/null", "--no-python", "sh", "-c", SCRIPTS[story], where],
                stdout=subprocess.DEVNULL, stderr=(where / f"agent{n}").open("w"),
                env=dict(os.environ, OMP_NUM_THREADS="1")))
        self.harmed = self.proxies[node]

    def start_store(self) -> None:
        port_file = self.where / "port"
        port_file.unlink(missing_ok=True)
        self.store = subprocess.Popen(
            [MUSTER, "store", "--bind", "127.0.0.1", "--port", str(self.port), "--port-file", port_file],
            stdout=subprocess.DEVNULL, stderr=(self.where / "store").open("a"))
        self.until(lambda: port_file.exists() and port_file.read_text().strip())
        self.port = int(port_file.read_text())

    def until(self, done) -> None:
        by = clock() + PATIENCE
        while not done():
            assert clock() < by, self.text()
            time.sleep(0.01)

    def text(self) -> dict[str, str]:
        return {p.name: p.read_text() for p in self.where.iterdir() if not p.name.startswith("port")}

    def lines(self, rank: int) -> list[list[str]]:
        return [line.split() for line in (self.where / f"said.{rank}").read_text().splitlines()]

    def check(self) -> float:
        """Both ended well, and agreed in the end. Returns how long it took."""
        codes = [a.wait(PATIENCE) for a in self.agents]
        took = clock() - self.began
        assert codes == [0, 0], (codes, self.text())
        last = [self.lines(rank)[-1] for rank in range(2)]
        assert [w[1:3] for w in last] == [["0", "2"], ["1", "2"]], self.text()
        assert last[0][3] == last[1][3], self.text()
        return took

    def close(self) -> None:
        for process in (*self.agents, self.store):
            if process.poll() is None:
                process.kill()
            process.wait()
        for proxy in self.proxies:
            proxy.close()


def play(where: Path, story: str, node: int, kind: str, at: int, conf: str = KEEP_ALIVE) -> tuple[float, bytes | None]:
    group = Group(where, story, node, kind, at, conf)
    try:
        return group.check(), group.harmed.harmed
    finally:
        group.close()


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("story,at", [("start", n) for n in range(2, 17, 2)] + [
    ("restart", 15), ("restart", 18), ("grow", 13), ("grow", 18)])
def test_a_reset_costs_a_moment(tmp_path, story, at, kind, node):
    took, _ = play(tmp_path, story, node, kind, at)
    assert took < 15, f"{took:.1f} s: somebody waited for a timeout"


def play_static(where: Path, kind: str, at: int) -> tuple[float, bytes | None]:
    port = free_port()
    proxy = Proxy(port, kind, at)
    began = clock()
    agents = [subprocess.Popen(
        [MUSTER, "run", "--nnodes=2", f"--node-rank={n}", "--master-addr=127.0.0.1",
         f"--master-port={p}", "--log-dir=/dev/null", "--no-python", "sh", "-c", SAY, where],
        stdout=subprocess.DEVNULL, stderr=(where / f"agent{n}").open("w"),
        env=dict(os.environ, OMP_NUM_THREADS="1")) for n, p in enumerate((port, proxy.port))]
    try:
        codes = [a.wait(PATIENCE) for a in agents]
        assert codes == [0, 0], [(where / f"agent{n}").read_text() for n in range(2)]
        return clock() - began, proxy.harmed
    finally:
        for a in agents:
            if a.poll() is None:
                a.kill()
            a.wait()
        proxy.close()


@pytest.mark.parametrize("kind", ["request", "reply"])
@pytest.mark.parametrize("at", range(2, 17, 3))
def test_a_reset_of_a_static_rendezvous(tmp_path, at, kind):
    took, _ = play_static(tmp_path, kind, at)
    assert took < 15, f"{took:.1f} s: somebody waited for a timeout"


@pytest.mark.parametrize("kind,at,node", [("silent", 3, 0), ("silent", 7, 1), ("silent", 12, 1),
                                          ("deaf", 7, 0), ("deaf", 11, 1), ("deaf", 13, 0)])
def test_a_silent_cut_is_found(tmp_path, at, kind, node):
    took, _ = play(tmp_path, "start", node, kind, at)
    assert took < 30, f"{took:.1f} s: somebody waited for a timeout"


@pytest.mark.parametrize("at", [9, 10, 11])
def test_a_silent_cut_is_waited_out_once(tmp_path, at):
    """While the address is found, ranks are agreed on, or all are done: whichever finds it, the others know."""
    group = Group(tmp_path, "start", 0, "silent", at)
    try:
        group.check()
        assert group.text()["agent0"].count("waiting 5 s") <= 1, group.text()
    finally:
        group.close()


@pytest.mark.parametrize("after_ms", [0, 20, 40, 60, 80, 120, 200])
def test_a_store_that_is_killed_and_started_again(tmp_path, after_ms):
    """At any moment: what it knew is gone, and the job goes on, perhaps in a new round."""
    group = Group(tmp_path, "restart", 0, "request", 0)
    try:
        time.sleep(after_ms / 1000)
        group.store.kill()
        group.store.wait()
        time.sleep(0.3)
        group.start_store()
        took = group.check()
        assert took < 30, f"{took:.1f} s: somebody waited for a timeout"
    finally:
        group.close()
