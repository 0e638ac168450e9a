"""Nodes of a rendezvous for tests: ours (interop_rdzv_node) and torch's own handler."""
from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from pathlib import Path

from patience import clock
from run_job import free_port  # noqa: F401 (for whoever starts nodes)

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("MUSTER_BUILD", "build")
NODE = BUILD / "tests/interop/interop_rdzv_node"
MUSTER = BUILD / "muster"
VENV = ROOT / "build/venv/bin"
PATIENCE = 40


class Node:
    """One process of ours that obeys commands; see rdzv_node.c."""

    def __init__(self, endpoint, run_id="job", nodes=(1, 1), addr="a", conf="",
                 backend="c10d", prefix=(), env=None):
        self.process = subprocess.Popen(
            [*prefix, str(NODE), backend, endpoint, run_id, str(nodes[0]), str(nodes[1]), addr, conf],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, **(env or {})))
        self.answers: queue.Queue[str] = queue.Queue()
        self.news: list[str] = []
        self.log: list[str] = []
        self.changed = threading.Condition()
        self.pending = 0
        for stream, sink in ((self.process.stdout, self._out), (self.process.stderr, self._err)):
            threading.Thread(target=self._pump, args=(stream, sink), daemon=True).start()

    def _pump(self, stream, sink):
        for line in stream:
            sink(line.rstrip("\n"))
        if sink == self._out:
            self.answers.put("end")

    def _out(self, line):
        if line.startswith("news "):
            with self.changed:
                self.news.append(line[5:])
                self.changed.notify_all()
        else:
            self.answers.put(line)

    def _err(self, line):
        with self.changed:
            self.log.append(line)
            self.changed.notify_all()

    def tell(self, command):
        self.pending += 1
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self, patience=PATIENCE):
        try:
            line = self.answers.get(timeout=patience)
            self.pending -= 1
            return line
        except queue.Empty:
            raise AssertionError(f"no answer; log: {self.log[-8:]} news: {self.news}") from None

    def ask(self, command, patience=PATIENCE):
        self.tell(command)
        return self.answer(patience)

    def joined(self, patience=PATIENCE):
        """(round, rank, world, master) of a `next` that was told before."""
        words = self.answer(patience).split()
        assert words[0] == "joined", " ".join(words)
        return int(words[1]), int(words[2]), int(words[3]), words[4]

    def heard(self, what, patience=PATIENCE):
        """Waits for a piece of news or a line of the log that contains `what`."""
        by = clock() + patience
        with self.changed:
            while True:
                for line in self.news + self.log:
                    if what in line:
                        return line
                if not self.changed.wait(max(0, by - clock())) and clock() >= by:
                    raise AssertionError(f"{what!r} not heard: {self.news} {self.log[-8:]}")

    def forget(self):
        with self.changed:
            self.news.clear()
            self.log.clear()

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)

    def end(self):
        if self.process.poll() is None and self.pending:
            self.process.kill()  # it sits in a call that nobody will end
        elif self.process.poll() is None:
            try:
                self.tell("quit")
                self.process.stdin.close()
                self.process.wait(20)
                assert self.process.returncode == 0, self.log[-60:]
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
        self.process.wait()
        return self.process.returncode


class TorchNode:
    """torch's own DynamicRendezvousHandler, in a thread of this process."""

    def __init__(self, endpoint, run_id="job", nodes=(1, 1), addr="a", is_host=False, **conf):
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous
        params = RendezvousParameters("c10d", endpoint, run_id, *nodes, addr, is_host=is_host, **conf)
        backend, store = c10d_rendezvous_backend.create_backend(params)
        self.handler = dynamic_rendezvous.create_handler(store, backend, params)
        self.results: queue.Queue = queue.Queue()

    def _next(self):
        try:
            info = self.handler.next_rendezvous()
            at = info.bootstrap_store_info
            round_ = self.handler._state_holder.state.round
            self.results.put((round_, info.rank, info.world_size, f"{at.master_addr}:{at.master_port}"))
        except Exception as e:  # noqa: BLE001 - whatever torch raises is the result
            self.results.put(e)

    def tell_next(self):
        threading.Thread(target=self._next, daemon=True).start()

    def joined(self, patience=PATIENCE):
        result = self.results.get(timeout=patience)
        if isinstance(result, Exception):
            raise result
        return result

    def end(self):
        self.handler._stop_heartbeats()
