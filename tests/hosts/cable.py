"""A bad cable: carries frames between a host and the switch, late or not at all.

usage: cable.py HOST_PID SWITCH_PID PORT DELAY_MS JITTER_MS LOSS_PERCENT SEED [PCAP]

Makes a TAP device eth0 in the network namespace of HOST_PID and one called PORT in that of
SWITCH_PID, says "ready", and forwards both ways. In user space, since many kernels come
without netem. Delay and jitter apply in each direction; order is kept, as on a real cable.
With a name PCAP it writes each frame, at the time at which it came, into that file, as tcpdump does.
"""
from __future__ import annotations

import collections
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP_NO_PI = 0x0002 | 0x1000


def open_tap(pid: str, name: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as ns:
        if libc.setns(ns.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP_NO_PI))
    return tap


class Pcap:
    def __init__(self, path: str) -> None:
        self.file = open(path, "wb")
        self.file.write(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65536, 1))

    def add(self, frame: bytes) -> None:
        now = time.time_ns() // 1000
        self.file.write(struct.pack("=IIII", now // 1000000, now % 1000000, len(frame), len(frame)) + frame)
        self.file.flush()


def main() -> None:
    host, switch, port = sys.argv[1:4]
    delay, jitter, loss = (float(text) for text in sys.argv[4:7])
    rng = random.Random(sys.argv[7])
    pcap = Pcap(sys.argv[8]) if len(sys.argv) > 8 else None
    a, b = open_tap(host, "eth0"), open_tap(switch, port)
    other = {a: b, b: a}
    late: dict[int, collections.deque[tuple[float, bytes]]] = {
        a: collections.deque(), b: collections.deque()}
    print("ready", flush=True)
    while True:
        due = min((q[0][0] for q in late.values() if q), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        for tap in select.select([a, b], [], [], wait)[0]:
            frame = os.read(tap, 65536)
            if pcap:
                pcap.add(frame)
            if rng.random() * 100 >= loss:
                at = time.monotonic() + (delay + rng.random() * jitter) / 1000
                queue = late[other[tap]]
                queue.append((max(at, queue[-1][0]) if queue else at, frame))
        now = time.monotonic()
        for tap, queue in late.items():
            while queue and queue[0][0] <= now:
                try:
                    os.write(tap, queue.popleft()[1])
                except OSError:
                    pass  # the other end is down: the frame is lost, as it would be


main()
