"""A node's connection to the host of its rendezvous is reset: within its grace that is a
blink that nobody else hears of, beyond it a loss that all hear of at once."""
from __future__ import annotations

import socket
import struct
import subprocess
import threading
import time

import pytest
from rdzv_nodes import MUSTER, Node


class Proxy:
    """Between one node and the store; can reset what runs through it, and refuse more."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open: list[socket.socket] = []
        self.lock = threading.Lock()
        self.refuses = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.refuses:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.to))
            with self.lock:
                self.open += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    @staticmethod
    def _pump(a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(65536):
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # reset, by us or by them

    def reset(self, refuse: bool = False) -> None:
        self.refuses = refuse
        with self.lock:
            for s in self.open:
                try:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    s.shutdown(socket.SHUT_RD)  # wakes the thread that reads
                except OSError:
                    pass
                s.close()
            self.open.clear()

    def close(self) -> None:
        self.reset(refuse=True)
        self.listener.close()


@pytest.fixture
def store(tmp_path):
    port_file = tmp_path / "port"
    proc = subprocess.Popen([MUSTER, "store", "--bind", "127.0.0.1", "--port", "0",
                             "--port-file", port_file], stdout=subprocess.DEVNULL)
    while not (port_file.exists() and port_file.read_text().strip()):
        assert proc.poll() is None, "muster store ended"
        time.sleep(0.01)
    yield int(port_file.read_text())
    proc.terminate()
    proc.wait()


@pytest.fixture
def pair(store, request):
    """`a` talks to the store, `b` through a proxy; both are in round 0."""
    proxy = Proxy(store)
    conf = f"is_host=0,last_call_timeout=300,loss_grace_ms={request.param}"
    a = Node(f"127.0.0.1:{store}", "job", (1, 2), "a", conf)
    b = Node(f"127.0.0.1:{proxy.port}", "job", (1, 2), "b", conf)
    for node in (a, b):
        node.tell("next")
    assert a.joined()[:3] == (0, 0, 2)
    assert b.joined()[:3] == (0, 1, 2)
    yield proxy, a, b
    for node in (a, b):
        node.kill()
        node.process.wait()
    proxy.close()


@pytest.mark.parametrize("pair", [60000], indirect=True)
def test_a_blink_is_no_loss(pair):
    proxy, a, b = pair
    for _ in range(3):
        b.forget()
        proxy.reset()
        b.heard("is back after")
    assert not [n for n in a.news + b.news if n.startswith(("LOST", "EVICTED"))]
    for node in (a, b):
        node.tell("next")
    assert a.joined()[:3] == (1, 0, 2)
    assert b.joined()[:3] == (1, 1, 2)


@pytest.mark.parametrize("pair", [0], indirect=True)
def test_without_grace_a_reset_is_a_loss_at_once(pair):
    proxy, a, b = pair
    proxy.reset()
    assert "its connection broke" in a.heard("LOST")
    b.heard("EVICTED")


@pytest.mark.parametrize("pair", [500], indirect=True)
def test_who_does_not_come_back_in_time_is_lost(pair):
    """The keep-alive bound is 15 s: this is the grace."""
    proxy, a, b = pair
    begin = time.monotonic()
    proxy.reset(refuse=True)
    assert "its connection broke" in a.heard("LOST")
    assert time.monotonic() - begin >= 0.5
    b.heard("cannot be reached")
