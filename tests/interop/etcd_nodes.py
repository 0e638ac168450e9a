"""Nodes of a rendezvous by hand: ours (a process each) and torch's (threads of one
process). Both take the same commands and give the same answers."""
from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from pathlib import Path

from etcd_server import BUILD, ROOT
from patience import clock

PROGRAM = BUILD / "tests/interop/interop_etcd_node"


class Answer(list):
    """The words of a line; what() is the first."""

    def what(self) -> str:
        return self[0]

    @property
    def round(self) -> int:
        return int(self[1])

    @property
    def rank(self) -> int:
        return int(self[2])

    @property
    def world(self) -> int:
        return int(self[3])

    @property
    def address(self) -> str:
        return f"{self[4]}:{self[5]}"

    @property
    def text(self) -> str:
        return " ".join(self)


class Node:
    """One of ours."""

    def __init__(self, backend: str, endpoint: str, run_id: str, nodes: tuple[int, int],
                 conf: str = "", addr: str = "127.0.0.1", log=subprocess.DEVNULL):
        self.proc = subprocess.Popen(
            [PROGRAM, backend, endpoint, run_id, str(nodes[0]), str(nodes[1]), conf, addr],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.news: queue.Queue[str] = queue.Queue()
        self.seen: list[tuple[float, str]] = []  # every line, with its time
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.proc.stdout:
            self.seen.append((time.monotonic(), line.strip()))
            words = line.split()
            if words[0] == "news":
                self.news.put(words[1])
            else:
                self.answers.put(Answer(words))

    def send(self, *words: str) -> None:
        self.proc.stdin.write(" ".join(words) + "\n")
        self.proc.stdin.flush()

    def answer(self, seconds: float = 60) -> Answer:
        return self.answers.get(timeout=seconds)

    def __call__(self, *words: str, seconds: float = 60) -> Answer:
        self.send(*words)
        return self.answer(seconds)

    def wait_news(self, kind: str, seconds: float = 60) -> None:
        end = clock() + seconds
        while True:
            try:
                if self.news.get(timeout=max(0.01, end - clock())) == kind:
                    return
            except queue.Empty:
                if clock() >= end:
                    raise

    def kill(self) -> None:
        self.proc.kill()
        self.proc.wait()


class TorchHost:
    """A process that imports torch once and runs many of torch's own handlers."""

    def __init__(self):
        self.proc = subprocess.Popen(
            [str(ROOT / "build/venv/bin/python"), str(Path(__file__).parent / "etcd_torch_node.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.nodes: dict[int, TorchNode] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.proc.stdout:
            message = json.loads(line)
            self.nodes[message["id"]].answers.put(Answer(message["words"]))

    def node(self, *args, **kw) -> "TorchNode":
        return TorchNode(self, *args, **kw)

    def send(self, message: dict) -> None:
        self.proc.stdin.write(json.dumps(message) + "\n")
        self.proc.stdin.flush()

    def close(self) -> None:
        self.proc.kill()
        self.proc.wait()


class TorchNode:
    """One of torch's handlers, in a thread of the host."""

    def __init__(self, host: TorchHost, backend: str, endpoint: str, run_id: str,
                 nodes: tuple[int, int], conf: str = "", addr: str = "127.0.0.1"):
        self.host, self.id = host, len(host.nodes)
        self.answers: queue.Queue[Answer] = queue.Queue()
        host.nodes[self.id] = self
        host.send({"id": self.id, "open": [backend, endpoint, run_id, *nodes, conf, addr]})

    def send(self, *words: str) -> None:
        self.host.send({"id": self.id, "do": list(words)})

    answer = Node.answer
    __call__ = Node.__call__
