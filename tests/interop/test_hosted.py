"""Hosted rendezvous over real sockets: groups of ours, groups with torch's own handlers,
losses, and a host that is killed and comes back."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BENCH = ROOT / "build/muster-bench"
PYTHON = ROOT / "build/venv/bin/python"


class Store:
    """A `muster store` that can be killed and started again on its port."""

    def __init__(self, directory: Path):
        self.port_file = directory / "port"
        self.log = (directory / "log").open("a+")
        self.port = "0"
        self.start()

    def start(self) -> None:
        self.port_file.unlink(missing_ok=True)
        self.proc = subprocess.Popen(
            [ROOT / os.environ.get("MUSTER_BUILD", "build") / "muster", "store", "--bind", "127.0.0.1", "--port", self.port,
             "--port-file", self.port_file],
            stdout=subprocess.DEVNULL, stderr=self.log)
        while not (self.port_file.exists() and self.port_file.read_text().strip()):
            assert self.proc.poll() is None, "muster store ended"
            time.sleep(0.01)
        self.port = self.port_file.read_text().strip()

    def kill(self) -> None:
        self.proc.send_signal(signal.SIGKILL)
        self.proc.wait()

    def text(self) -> str:
        self.log.seek(0)
        return self.log.read()


@pytest.fixture
def store(tmp_path):
    s = Store(tmp_path)
    yield s
    s.kill()


class Nodes:
    """Nodes of ours: muster-bench checks that every rank is there once."""

    def __init__(self, store: Store, nodes: int, more: int = 0, rounds: int = 1, *args: str):
        self.proc = subprocess.Popen(
            [BENCH, "rdzv", "--nodes", str(nodes), "--more", str(more), "--rounds",
             str(rounds), "--wait", "--endpoint", f"127.0.0.1:{store.port}", *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def joined(self) -> None:
        assert self.proc.stdout.readline() == "joined\n"

    def again(self) -> None:
        self.proc.stdin.write("\n")
        self.proc.stdin.flush()

    def result(self) -> dict:
        out, _ = self.proc.communicate(timeout=120)
        assert self.proc.returncode == 0
        return json.loads(out.splitlines()[-1])


class TorchNodes:
    def __init__(self, store: Store, count: int, total: int, rounds: int):
        self.count = count
        self.proc = subprocess.Popen(
            [PYTHON, ROOT / "bench/torch_nodes.py", "127.0.0.1", store.port, "bench", "0",
             str(count), str(total), str(rounds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.proc.stdout.readline() == "ready\n"

    def join(self) -> None:
        self.proc.stdin.write("\n")
        self.proc.stdin.flush()

    def told(self) -> list[tuple[int, int, int]]:
        """(round, rank, world) of each."""
        rows = [self.proc.stdout.readline().split() for _ in range(self.count)]
        return sorted((int(r[1]), int(r[2]), int(r[3])) for r in rows)

    def stop(self) -> None:
        self.proc.kill()
        self.proc.wait()


def test_a_group_of_ours_again_and_again(store):
    nodes = Nodes(store, 40, 0, 5, "--processes", "4", "--lose")
    for _ in range(4):
        nodes.joined()
        nodes.again()
    assert nodes.result()["nodes"] == 40
    assert "round 4 is complete, 40 nodes" in store.text()


def test_one_group_with_torch_round_after_round(store):
    """Ranks are those of the sorted descriptors: `bench` comes before `torch...`."""
    torch = TorchNodes(store, 2, 5, 3)
    nodes = Nodes(store, 3, 2, 3, "--beat", "2")
    try:
        for round_ in range(3):
            if round_:
                nodes.joined()
                nodes.again()
            torch.join()
            assert torch.told() == [(round_, 3, 5), (round_, 4, 5)]
        assert nodes.result()["more"] == 2
    finally:
        torch.stop()


def test_torch_comes_first_and_finds_the_same_round(store):
    torch = TorchNodes(store, 2, 4, 1)
    try:
        torch.join()
        time.sleep(1)  # torch writes its state before any node of ours is there
        nodes = Nodes(store, 2, 2, 1, "--beat", "2")
        assert torch.told() == [(0, 2, 4), (0, 3, 4)]
        nodes.result()
    finally:
        torch.stop()


def test_a_lost_torch_node_is_noticed(store):
    """Silent for the keep-alive bound: the host tells the others."""
    torch = TorchNodes(store, 1, 3, 1)
    nodes = Nodes(store, 2, 1, 2)
    torch.join()
    nodes.joined()
    assert torch.told() == [(0, 2, 3)]
    torch.stop()
    for _ in range(400):
        if "torch00000" in store.text() and "silent" in store.text():
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"nobody noticed: {store.text()}")
    nodes.proc.kill()
    nodes.proc.wait()


def test_a_restarted_host_goes_on(store):
    """The store is killed between two rounds and comes back empty on its port: its nodes
    tell it the round they are in, and the next one is the next."""
    nodes = Nodes(store, 12, 0, 3)
    nodes.joined()
    store.kill()
    store.start()
    for _ in range(300):
        if "12 of 12 nodes are here" in store.text():
            break
        time.sleep(0.1)
    nodes.again()
    nodes.joined()
    nodes.again()
    nodes.result()
    assert "12 of 12 nodes are here" in store.text()
    assert "round 1 is complete, 12 nodes" in store.text()


def test_nonsense_to_the_host_closes_that_connection_only(store):
    import socket
    import struct

    key = b"/\x01muster/run"
    nodes = Nodes(store, 4, 0, 2)
    nodes.joined()
    for value in (b"", b"\x03", b"\x02\x00", b"\x03\x02" + b"\0" * 8, b"\x03\x63",
                  b"\x03\x01" + b"\xff" * 60, b"\x03\x01" + b"\0" * 5000):
        with socket.create_connection(("127.0.0.1", int(store.port)), timeout=10) as s:
            s.sendall(b"\x00\xce\xf7\x85\x3c")
            s.sendall(b"\x0e" + struct.pack("<Q", len(key)) + key
                      + struct.pack("<Q", len(value)) + value)
            assert s.recv(1) == b"", value
    nodes.again()
    nodes.result()
