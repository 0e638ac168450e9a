"""A store that stalls or breaks at each point of the exchange: our node ends with a
definite error of the right kind, or joins, and never hangs."""
from __future__ import annotations

import socket
import threading
import time

import pytest

from rdzv_nodes import Node, free_port


class Cutter:
    """Between a node and its store: lets so many bytes of the answers through, over all
    connections, then closes everything or falls silent."""

    def __init__(self, target, cut, how):
        self.target, self.left, self.how = target, cut, how
        self.lock = threading.Lock()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                peer, _ = self.server.accept()
            except OSError:
                return
            if self.left <= 0 and self.how == "close":
                peer.close()
                continue
            store = socket.create_connection(("127.0.0.1", self.target))
            self.open += [peer, store]
            threading.Thread(target=self._pump, args=(peer, store, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(store, peer, True), daemon=True).start()

    def _pump(self, source, sink, counted):
        try:
            while data := source.recv(4096):
                if counted:
                    with self.lock:
                        data, over = data[:max(self.left, 0)], len(data) >= self.left
                        self.left -= len(data)
                    sink.sendall(data)
                    if over and self.how == "close":
                        break
                    if over:
                        return  # silence: read nothing, say nothing
                else:
                    sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            try:
                s.close()
            except OSError:
                pass

    def end(self):
        for s in [self.server, *self.open]:
            s.close()


@pytest.mark.parametrize("hosted", [0, 1])
@pytest.mark.parametrize("how", ["close", "stall"])
def test_cut_off_anywhere(how, hosted):
    """Two nodes are in the run: the store's own, and one behind the cutter."""
    port = free_port()
    host = Node(f"127.0.0.1:{port}", "job", (1, 99), "host", f"hosted={hosted},last_call_timeout=1")
    cases = []
    try:
        host.tell("next")
        host.joined()
        # The handshakes, the first answers, the state, and then steps through the rest.
        for cut in [0, 1, 3, 4, 5, 8, 12, 13, 16, 20, 24, 33, 40, 60, 100, 200, 300, 400, 500, 700, 900, 1200]:
            cutter = Cutter(port, cut, how)
            node = Node(f"127.0.0.1:{cutter.port}", "job", (1, 99), f"n{cut}",
                        f"is_host=0,hosted={hosted},read_timeout=2,join_timeout=3,last_call_timeout=1")
            node.tell("next")
            cases.append((cut, cutter, node))
        seen = set()
        for cut, _, node in cases:
            said = node.answer(patience=40)
            kind = said.split()[0:2] if said.startswith("error") else ["joined"]
            assert kind[-1] in ("joined", "MUSTER_ECONN", "MUSTER_ETIMEDOUT"), (cut, said)
            if kind[-1] != "joined":
                assert "'job'" in said or "job" in said, (cut, said)
            seen.add(kind[-1])
        assert "MUSTER_ECONN" in seen or "MUSTER_ETIMEDOUT" in seen
    finally:
        for _, cutter, node in cases:
            node.end()
            cutter.end()
        host.end()


def test_store_restarted_empty():
    """The host dies and comes back with nothing: the nodes find each other again."""
    port = free_port()
    conf = "last_call_timeout=2,keep_alive_interval=1"
    host = Node(f"127.0.0.1:{port}", "job", (2, 2), "a", conf)
    node = Node(f"127.0.0.1:{port}", "job", (2, 2), "b", conf + ",is_host=0,read_timeout=20")
    try:
        host.tell("next")
        node.tell("next")
        assert host.joined()[2] == node.joined()[2] == 2
        host.kill()
        host.process.wait()
        node.tell("next")
        time.sleep(0.5)
        host = Node(f"127.0.0.1:{port}", "job", (2, 2), "a", conf)
        host.tell("next")
        assert {host.joined()[1], node.joined()[1]} == {0, 1}
    finally:
        node.end()
        host.end()


@pytest.mark.parametrize("hosted", [0, 1])
def test_host_killed_for_good(hosted):
    """The others know within the time that a node may be silent, and a join gives up."""
    at = f"127.0.0.1:{free_port()}"
    conf = f"hosted={hosted},keep_alive_interval=1,keep_alive_max_attempt=2,read_timeout=4"
    host = Node(at, "job", (2, 2), "a", conf)
    node = Node(at, "job", (2, 2), "b", conf + ",is_host=0")
    try:
        host.tell("next")
        node.tell("next")
        assert host.joined()[2] == node.joined()[2] == 2
        host.kill()
        node.heard("BACKEND")
        said = node.ask("next")
        assert said.startswith("error MUSTER_ECONN") and "'job'" in said and at in said
    finally:
        node.end()
        host.end()
