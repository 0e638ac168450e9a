"""A server that says what a script tells it to: for clients that must survive it."""
from __future__ import annotations

import socket
import struct
import threading

HELLO = b"\x00\xce\xf7\x85\x3c"


class Peer:
    def __init__(self, conn: socket.socket):
        self.conn = conn

    def read(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            more = self.conn.recv(n - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def write(self, data: bytes) -> None:
        self.conn.sendall(data)

    def greet(self) -> None:
        """Reads VALIDATE and PING, and answers as a store does."""
        hello = self.read(10)
        assert hello[:5] == HELLO and hello[5] == 0x0D, hello
        self.write(hello[6:])

    def bytes(self) -> bytes:
        (n,) = struct.unpack("<Q", self.read(8))
        return self.read(n)

    def keys(self) -> list[bytes]:
        (n,) = struct.unpack("<Q", self.read(8))
        return [self.bytes() for _ in range(n)]

    def reset(self) -> None:
        self.conn.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )

    def until_closed(self) -> bytes:
        """What else comes until the client hangs up."""
        data = b""
        try:
            while more := self.conn.recv(65536):
                data += more
        except OSError:
            pass
        return data


class Fake:
    """Runs script(peer, n) for the n-th connection, on a thread each."""

    def __init__(self, script, host: str = "127.0.0.1", family=socket.AF_INET):
        self.script = script
        self.sock = socket.socket(family)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            self.sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self.sock.bind((host, 0))
        self.sock.listen()
        self.port = self.sock.getsockname()[1]
        self.connections = 0
        self.failures: list[BaseException] = []
        self.threads: list[threading.Thread] = []
        self.conns: list[socket.socket] = []
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self.sock.accept()
            except OSError:
                return
            self.conns.append(conn)
            t = threading.Thread(
                target=self._serve, args=(conn, self.connections), daemon=True
            )
            self.connections += 1
            self.threads.append(t)
            t.start()

    def _serve(self, conn: socket.socket, n: int) -> None:
        try:
            self.script(Peer(conn), n)
        except (EOFError, OSError):
            pass
        except BaseException as e:
            self.failures.append(e)
        finally:
            conn.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        for c in self.conns:
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for t in self.threads:
            t.join(10)
        if exc[0] is None:
            assert not self.failures, self.failures
