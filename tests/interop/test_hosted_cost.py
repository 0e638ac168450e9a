"""What a group costs the host of its rendezvous, in requests, answers and bytes: the same
for each node however many there are. Counts only, never times."""
from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
MUSTER = ROOT / "build/muster"


def bench(nodes: int, *args: str) -> dict:
    out = subprocess.run([ROOT / "build/muster-bench", "rdzv", "--nodes", str(nodes), *args],
                         capture_output=True, text=True, timeout=120, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def test_each_node_costs_the_same():
    """A join is four requests (VALIDATE, PING, HELLO, JOIN) and four answers (PONG, WELCOME,
    GATHERED, JOINED); to join again is one, with one answer and one for the news; a loss is
    one message to each of the others. On a machine that stands still for seconds a heartbeat
    and one more GATHERED may come on top, never anything that grows with the group."""
    few = bench(50, "--rounds", "2", "--lose")
    many = bench(1000, "--rounds", "2", "--lose")
    for r in (few, many):
        n = r["nodes"]
        assert 4 * n <= r["operations"] <= 6 * n
        assert n <= r["again_operations"] <= 3 * n
        assert r["lost_operations"] <= 2 * n
        assert n - 1 <= r["lost_answers"] <= 2 * n
        assert r["answers"] <= 8 * n
        assert r["again_answers"] <= 8 * n
        assert r["bytes"] <= 1000 * n
        assert r["again_bytes"] <= 600 * n
        assert r["lost_bytes"] <= 200 * n
        assert r["host_cpu_seconds"] > 0 and r["host_peak_kb"] > 0 and r["seconds"] > 0


def test_a_heartbeat_is_one_small_message():
    r = bench(20, "--beat", "10")  # torch's interval is 5 s
    beats = r["beat_operations"]
    assert 0 < beats <= 10 * r["nodes"]
    assert r["beat_answers"] <= beats  # an echo each, by which a node knows that it is heard
    assert r["beat_bytes"] <= 80 * beats  # both ways


class Store:
    def __init__(self, directory: Path) -> None:
        port_file = directory / "port"
        self.proc = subprocess.Popen(
            [MUSTER, "store", "--bind", "127.0.0.1", "--port", "0", "--port-file", port_file],
            stdout=subprocess.DEVNULL)
        while not (port_file.exists() and port_file.read_text().strip()):
            assert self.proc.poll() is None, "muster store ended"
            time.sleep(0.01)
        self.port = int(port_file.read_text())

    def stats(self) -> dict[str, int]:
        key = b"/\x01muster/stats"
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as s:
            s.sendall(b"\x00\xce\xf7\x85\x3c" + b"\x03" + struct.pack("<Q", len(key)) + key)
            f = s.makefile("rb")
            words = f.read(*struct.unpack("<Q", f.read(8))).decode().split()
        return {k: int(v) for k, v in zip(words[::2], words[1::2])}

    def stop(self) -> None:
        self.proc.terminate()
        self.proc.wait()


@pytest.fixture
def store(tmp_path):
    s = Store(tmp_path)
    yield s
    s.stop()


def job(store: Store, agents: int) -> dict[str, int]:
    """What one job costs the store: round, ranks, workers that end at once, exit barrier."""
    before = store.stats()
    env = dict(os.environ, OMP_NUM_THREADS="1")
    procs = [subprocess.Popen(
        [MUSTER, "run", f"--nnodes={agents}", "--nproc-per-node=1", "--rdzv-backend=c10d",
         f"--rdzv-endpoint=127.0.0.1:{store.port}", f"--rdzv-id=job{agents}",
         "--rdzv-conf=is_host=0,keep_alive_interval=600", f"--local-addr=node{i:03}",
         "--log-dir=/dev/null", "--no-python", "true"], env=env) for i in range(agents)]
    for p in procs:
        assert p.wait(timeout=120) == 0
    after = store.stats()
    # GATHERED comes as often as time goes by, so answers are not a measure here.
    return {"requests": after["requests"] - before["requests"],
            "bytes_in": after["bytes_in"] - before["bytes_in"]}


def test_ranks_and_exit_barrier_are_linear_too(store):
    """From 4 to 8 to 16 agents: what is added doubles. torch's agents each read what all
    the others say, where it would quadruple."""
    small, middle, large = (job(store, n) for n in (4, 8, 16))
    for part in small:
        step = middle[part] - small[part]
        assert large[part] - middle[part] <= 2.6 * step, (part, small, middle, large)
    assert large["requests"] <= 44 * 16
