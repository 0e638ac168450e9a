"""A TCP proxy that harms one connection, once, at a given request.

Requests are counted over all connections, in the order in which their bytes come. Kinds:
  request  the n-th request is not passed on; both ends get a reset
  reply    it is passed on, and the connection is reset before an answer comes back
  silent   from it on nothing passes on that connection, either way; nobody is told
  deaf     from it on the client hears nothing on that connection; the server does
"""
from __future__ import annotations

import socket
import struct
import threading
import time

KINDS = ("request", "reply", "silent", "deaf")


def reset(*ends: socket.socket) -> None:
    for end in ends:
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.shutdown(socket.SHUT_RD)  # Wakes whoever reads; the close below resets.
        except OSError:
            pass
        end.close()


class Proxy:
    def __init__(self, target: int, kind: str = "request", at: int = 0) -> None:
        self.target, self.kind, self.at = target, kind, at  # at 0: harms nobody
        self.count = 0
        self.harmed: bytes | None = None  # the request that it was
        self.cut: set[socket.socket] = set()
        self.lock = threading.Lock()
        self.ends: set[socket.socket] = set()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                reset(client)
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.ends |= {client, server}
            threading.Thread(target=self.requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self.replies, args=(client, server), daemon=True).start()

    def is_due(self, data: bytes) -> bool:
        with self.lock:
            self.count += 1
            if self.harmed is not None or self.count != self.at:
                return False
            self.harmed = data
            return True

    def requests(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            try:
                data = client.recv(65536)
                if not data:
                    break
                if client in self.cut and self.kind != "deaf":
                    continue
                if self.is_due(data):
                    if self.kind == "request":
                        reset(client, server)
                        return
                    self.cut.add(client)
                    if self.kind == "silent":
                        continue
                    server.sendall(data)
                    if self.kind == "reply":
                        time.sleep(0.02)  # The server takes it in.
                        reset(client, server)
                        return
                    continue
                server.sendall(data)
            except OSError:
                break
        if client not in self.cut:
            self.hang_up(client, server)

    def replies(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            try:
                data = server.recv(65536)
                if not data:
                    break
                if client not in self.cut:
                    client.sendall(data)
            except OSError:
                break
        if client not in self.cut:
            self.hang_up(client, server)

    def hang_up(self, *ends: socket.socket) -> None:
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self.hang_up(self.listener)
        self.listener.close()
        with self.lock:
            ends, self.ends = self.ends, set()
        reset(*ends)
