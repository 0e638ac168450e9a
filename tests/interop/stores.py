"""Store servers to talk to, ours and torch's, and a raw client for them."""
from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

from patience import clock

ROOT = Path(__file__).resolve().parents[2]
MUSTER = ROOT / os.environ.get("MUSTER_BUILD", "build") / "muster"

TORCH_SERVER = """
import sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                      use_libuv=sys.argv[1] == "uv")
print("listening on 127.0.0.1:%d" % store.port, flush=True)
sys.stdin.read()
"""


class Server:
    """A process that says `listening on ADDR:PORT`, until `stop`."""

    def __init__(self, argv: list[str], env: dict | None = None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True, env=env)
        self.said = self.process.stdout.readline().strip()
        if not self.said.startswith("listening on "):
            self.process.wait()
            raise RuntimeError(f"{argv}: {self.said!r}\n{self.stderr()}")
        self.port = int(self.said.rpartition(":")[2])

    def stderr(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def wait_for_log(self, text: str, timeout: float = 60) -> str:
        end = clock() + timeout
        while text not in self.stderr():
            assert clock() < end, f"no {text!r} in:\n{self.stderr()}"
            assert self.process.poll() is None, f"the server ended:\n{self.stderr()}"
            time.sleep(0.02)
        return self.stderr()

    def stop(self, sig: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        rc = self.process.wait(60)
        self.process.stdin.close()
        self.process.stdout.close()
        return rc

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()
        self.log.close()


def ours(*args: str, bind: str | None = "127.0.0.1", env: dict | None = None) -> Server:
    argv = [str(MUSTER), "store", "--port", "0", *args]
    return Server(argv + (["--bind", bind] if bind else []), env)


def torchs(backend: str = "uv") -> Server:
    return Server([sys.executable, "-c", TORCH_SERVER, backend])


MAGIC = bytes.fromhex("00cef7853c")
(VALIDATE, SET, CAS, GET, ADD, CHECK, WAIT, NUM, DELETE, APPEND, MGET, MSET, CANCEL, PING,
 PUSH, POP, QLEN, LIST, BARRIER) = range(19)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n & (2**64 - 1))


def blob(b: bytes | str) -> bytes:
    b = b.encode() if isinstance(b, str) else b
    return u64(len(b)) + b


def blobs(*items) -> bytes:
    return u64(len(items)) + b"".join(blob(i) for i in items)


def request(op: int, *fields) -> bytes:
    """Fields: bytes or str, int, or a list of keys (or of keys and values in turn)."""
    out = bytes([op])
    for f in fields:
        if isinstance(f, int):
            out += u64(f)
        elif isinstance(f, list) and op == MSET:
            out += u64(len(f) // 2) + b"".join(blob(i) for i in f)
        elif isinstance(f, list):
            out += blobs(*f)
        else:
            out += blob(f)
    return out


SETTINGS = ("min=2 max=2 join_ms=60000 last_call_ms=1000 close_ms=30000 keep_alive_s=99 "
            "keep_alive_max=3")


def hello(run: str, addr: str = "node", pid: int = 1, settings: str = SETTINGS, flags: int = 8, nonce: int | None = None,
          node: int = 0) -> bytes:
    """What a node of ours says first to its run (src/job/core/wire.c); flags: 1 observer, 8 seats, 16 record."""
    def text(t: str) -> bytes:
        return struct.pack("<I", len(t.encode())) + t.encode()

    if nonce is None:
        nonce = zlib.crc32(f"{addr} {pid}".encode())  # names the process
    message = (b"\x03\x01" + text(run) + struct.pack("<IQ", flags, nonce) + text(addr) + text("") +
               struct.pack("<qqQIq", pid, 1, 0, node, 0) + text(addr) + struct.pack("<q", 0) +
               text(settings) + struct.pack("<iQQqqq", 0, 0, 1000, -1, -1, 0) + text("default") + text(""))  # no restart policy
    return request(PUSH, "/\x01muster/run", message)


WELCOME, REFUSED, LEFT, NEWS = 16, 19, 20, 21  # what the run says


class Closed(Exception):
    pass


class Wire:
    """One connection, by hand."""

    def __init__(self, server: Server | int, hello: bytes = MAGIC, host: str = "127.0.0.1",
                 source: str | None = None):
        port = server if isinstance(server, int) else server.port
        self.sock = socket.create_connection((host, port), timeout=60,
                                             source_address=(source, 0) if source else None)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hello:
            self.sock.sendall(hello)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def slowly(self, data: bytes) -> None:
        for i in range(len(data)):
            self.sock.sendall(data[i:i + 1])
            if i % 7 == 0:
                time.sleep(0.0005)

    def send(self, op: int, *fields) -> None:
        self.raw(request(op, *fields))

    def take(self, n: int) -> bytes:
        out = b""
        while len(out) < n:
            try:
                piece = self.sock.recv(n - len(out))
            except ConnectionResetError:
                raise Closed(out) from None
            if not piece:
                raise Closed(out)
            out += piece
        return out

    def number(self) -> int:
        return struct.unpack("<q", self.take(8))[0]

    def blob(self) -> bytes:
        return self.take(self.number())

    def closed(self) -> bool:
        """True once the server has closed; fails if it says something instead."""
        try:
            got = self.sock.recv(1)
        except ConnectionError:
            return True
        assert got == b"", got
        return True

    def quiet(self, seconds: float = 0.15) -> bool:
        return not select.select([self.sock], [], [], seconds)[0]

    def ping(self) -> None:
        """All requests before this one have been served when it returns."""
        self.raw(b"\x0d\x01\x02\x03\x04")
        assert self.take(4) == b"\x01\x02\x03\x04"

    # The calls, as bytes on the wire.
    def set(self, k, v) -> None:
        self.send(SET, k, v)

    def get(self, k) -> bytes:
        self.send(GET, k)
        return self.blob()

    def add(self, k, n) -> int:
        self.send(ADD, k, n)
        return self.number()

    def cas(self, k, old, new) -> bytes:
        self.send(CAS, k, old, new)
        return self.blob()

    def check(self, *keys) -> bool:
        self.send(CHECK, list(keys))
        return {0: True, 1: False}[self.take(1)[0]]

    def wait(self, *keys) -> None:
        self.send(WAIT, list(keys))

    def woken(self) -> bool:
        assert self.take(1) == b"\x00"
        return True

    def cancel(self) -> bytes:
        self.raw(b"\x0c")
        return self.take(1)

    def pop(self, k) -> tuple[int, bytes | None]:
        self.send(POP, k)
        n = self.number()
        return n, self.blob() if n > 0 else None

    def push(self, k, v) -> None:
        self.send(PUSH, k, v)

    def delete(self, k) -> int:
        self.send(DELETE, k)
        return self.number()

    def num(self) -> int:
        self.send(NUM)
        return self.number()

    def keys(self) -> list[bytes]:
        self.send(LIST)
        return [self.blob() for _ in range(self.number())]


def in_thread(fn, *args):
    """Runs fn; returns a function that waits for it and gives its result or raises."""
    box = {}

    def run():
        try:
            box["value"] = fn(*args)
        except BaseException as e:  # noqa: BLE001 - handed on
            box["error"] = e

    t = threading.Thread(target=run, daemon=True)
    t.start()

    def result(timeout: float = 60):
        t.join(timeout)
        assert not t.is_alive(), f"{fn} hangs"
        if "error" in box:
            raise box["error"]
        return box.get("value")

    return result
