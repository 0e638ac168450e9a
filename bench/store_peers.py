"""The servers that bench_store.py measures, and the generator that asks them.

Every server runs on one core, the load generator (muster-bench) on another."""
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCH = str(ROOT / "build/muster-bench")
MUSTER = str(ROOT / "build/muster")
PYTHON = str(ROOT / "build/venv/bin/python")
CORES = sorted(os.sched_getaffinity(0))
SERVER_ON = ["taskset", "-c", str(CORES[0])]
LOAD_ON = ["taskset", "-c", str(CORES[-1])]

TORCH = """
import sys, torch.distributed as dist
s = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print("listening on 127.0.0.1:%d" % s.port, flush=True)
sys.stdin.read()
"""
OURS_ARGV = [MUSTER, "store", "--bind", "127.0.0.1", "--port", "0"]
TORCH_ARGV = [PYTHON, "-c", TORCH]
# Sizes of the messages of muster-bench load, for the echo server.
SIZES = {"add": (25, 8), "get": (15, 72), "check": (23, 1)}


def realtime() -> None:
    """As root: other work on the machine does not come in between."""
    for on in (SERVER_ON, LOAD_ON):
        on[:0] = ["chrt", "-f", "1"]


class Dns:
    """Torch's server asks for the name of each client that connects, and waits for the
    answer. What that costs depends on the name service: none at all ("files"), one
    nearby ("near": no such name, after a millisecond), one that never answers
    ("silent": torch gives up after a while and asks no more). Only root can set these
    up; for others the machine's own is used."""

    def __init__(self) -> None:
        self.root = os.geteuid() == 0
        self.dir = Path(tempfile.mkdtemp())
        (self.dir / "files").write_text("hosts: files\n")
        (self.dir / "dns").write_text("hosts: files dns\n")
        self.sockets = []
        for kind, address in (("near", "127.0.0.78"), ("silent", "127.0.0.77")):
            (self.dir / kind).write_text(f"nameserver {address}\n")
            self.sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            if self.root:
                try:
                    self.sockets[-1].bind((address, 53))
                except OSError as e:
                    print(f"no name servers of our own: {address}:53: {e}")
                    self.root = False
        if self.root:
            threading.Thread(target=self.answer, args=(self.sockets[0],), daemon=True).start()

    @staticmethod
    def answer(sock: socket.socket) -> None:
        while True:
            query, peer = sock.recvfrom(512)
            time.sleep(0.001)
            sock.sendto(query[:2] + b"\x81\x83" + query[4:], peer)

    def wrap(self, kind: str, argv: list[str]) -> list[str]:
        if not self.root:
            return argv
        mounts = f"mount --bind {self.dir}/{'files' if kind == 'files' else 'dns'} /etc/nsswitch.conf"
        if kind != "files":
            mounts += f" && mount --bind {self.dir}/{kind} /etc/resolv.conf"
        return ["unshare", "-m", "sh", "-c", mounts + ' && exec "$@"', "sh", *argv]

    def close(self) -> None:
        shutil.rmtree(self.dir, ignore_errors=True)


class Server:
    def __init__(self, name: str, argv: list[str], port: int | None = None):
        self.name = name
        self.dir = tempfile.mkdtemp()
        self.process = subprocess.Popen([*SERVER_ON, *argv], cwd=self.dir,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        if port is None:
            line = self.process.stdout.readline()
            self.port = int(line.rpartition(":")[2])
            return
        self.port = port
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return
            time.sleep(0.02)
        sys.exit(f"{name} does not start")

    def memory(self) -> int:
        """Private bytes: what this process alone takes."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return sum(int(n) for n in re.findall(r"Private_\w+:\s+(\d+) kB", text)) * 1024

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(name: str, dns: Dns, op: str = "add") -> Server:
    if name == "muster":
        return Server(name, OURS_ARGV)
    if name == "torch":
        return Server(name, dns.wrap("files", TORCH_ARGV))
    if name == "redis":
        port = free_port()
        return Server(name, ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save",
                             "", "--appendonly", "no", "--maxclients", "30000"], port)
    if name == "bare":
        return Server(name, [BENCH, "bare"])
    size, reply = SIZES[op]
    return Server(name, [BENCH, "echo", "--size", str(size), "--reply", str(reply)])


def bench(*args: str) -> dict:
    """What muster-bench says in its last line."""
    run = subprocess.run([*LOAD_ON, BENCH, *args], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"muster-bench {' '.join(args)}: {run.stderr.strip()}")
    return json.loads(run.stdout.splitlines()[-1])


def load(server: Server, op: str, conns: int, seconds: float) -> dict:
    proto = {"redis": "resp", "echo": "echo"}.get(server.name, "c10d")
    args = ["--proto", proto, "--op", op, "--port", str(server.port), "--count", str(conns),
            "--seconds", str(seconds), "--server", str(server.process.pid)]
    if proto == "echo":
        args += ["--size", str(SIZES[op][0]), "--reply", str(SIZES[op][1])]
    return bench("load", *args)


def crowd(server: Server, mode: str, clients: int) -> dict:
    return bench("crowd", mode, "--port", str(server.port), "--count", str(clients),
                 "--server", str(server.process.pid))


def idle_crowd(server: Server, conns: int) -> subprocess.Popen:
    """Clients that have said hello and stay until the process's stdin is closed."""
    p = subprocess.Popen([BENCH, "crowd", "idle", "--port", str(server.port), "--count",
                          str(conns)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    p.stdout.readline()
    return p
