"""What a stranger on the network tries at the ports of a job. Prints one line a try: what it was and
what came of it ("closed", or the bytes that came back).

usage: attacker.py HOST PORT RUN_ID
"""
from __future__ import annotations

import socket
import struct
import sys

MAGIC = bytes.fromhex("00cef7853c")
SET, CAS, GET, CHECK, WAIT, NUM, DELETE, PING, PUSH, LIST = 1, 2, 3, 5, 6, 7, 8, 13, 14, 17


def blob(b: bytes | str) -> bytes:
    b = b.encode() if isinstance(b, str) else b
    return struct.pack("<Q", len(b)) + b


def ask(host: str, port: int, *requests: bytes, wait: float = 1) -> bytes:
    with socket.create_connection((host, port), timeout=wait) as s:
        s.sendall(MAGIC + b"".join(requests))
        got = b""
        try:
            while more := s.recv(65536):
                got += more
        except TimeoutError:
            return got + b"<open>"
        except ConnectionError:
            pass
        return got


def main() -> None:
    host, port, run = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    state = f"/torch.rendezvous.{run}"
    nonce = bytes(range(32))
    tries = {
        "list": bytes([LIST]),
        "number": bytes([NUM]),
        "get": bytes([GET]) + blob(f"{state}.0/MASTER_ADDR"),
        "set": bytes([SET]) + blob("/x") + blob("y") + bytes([GET]) + blob("/x"),
        "delete": bytes([DELETE]) + blob(state),
        "ranks": bytes([SET]) + blob(f"/{run}/torchelastic/assigned_ranks/1") + blob("[]") + bytes([PING]) + b"pong",
        "hello": bytes([PUSH]) + blob("/\x01muster/run") + blob(b"\x03\x01" + blob(run)),
        "job": bytes([PUSH]) + blob("/\x01muster/job") + blob(b"\x02\x01"),
        "lanes": bytes([PUSH]) + blob("/\x01muster/lanes") + blob("1") + struct.pack("<II", 0, 0),
        "stats": bytes([GET]) + blob("/\x01muster/stats"),
        "empty proof": bytes([PUSH]) + blob("/\x01muster/auth") + blob(b""),
        "wrong answer": bytes([PUSH]) + blob("/\x01muster/auth") + blob(bytes([1, 3]) + nonce + b"\0"),
        "reflected challenge": bytes([PUSH]) + blob("/\x01muster/auth") + blob(bytes([1, 2, 0]) + nonce + b"\0\0" + nonce),
        "huge": bytes([SET]) + blob("/x") + struct.pack("<Q", 200 << 20) + b"y" * 300000,
    }
    for name, request in tries.items():
        try:
            got = ask(host, port, request)
        except OSError as e:
            got = repr(e).encode()
        print(f"{name}: {got[:80]!r}", flush=True)


if __name__ == "__main__":
    main()
