"""What a job of two nodes sends between them: connections, sequential round trips, and the time of a
start and of a restart behind a slow cable. `bench/count net` runs it.

Each job runs on two hosts of the rig (network namespaces; needs root), node1 serves the store, and all
that node2 sends or hears goes through tests/hosts/cable.py, which delays every frame and keeps it.

A job: node1 waits for node2; node2 is started; both have a worker each, which is a shell and does not
use the network. Then the worker of node2 is killed, and both start their second attempt.

- connections: SYNs of node2 to node1 in the whole job, and how many of them were open at the same
  time; one is open until both sides have closed it.
- round trips: the same job with two delays of the cable; what the time grows by, divided by what a
  round trip grows by. Time that is spent without the network falls out, a TCP handshake counts, and
  so does a message that goes one way, as a half. start: from the exec of node2's agent until its worker
  runs. restart: from the kill until the last of the two workers runs.
"""
from __future__ import annotations

import itertools
import os
import re
import signal
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from older import ROOT

sys.path.insert(0, str(ROOT / "tests/hosts"))
from rig import Rig  # noqa: E402

PORT = 29400
WORKER = 'echo "$EPOCHREALTIME $BASHPID" > "$0/new.$RANK"; mv "$0/new.$RANK" "$0/$RANK.$TORCHELASTIC_RESTART_COUNT"; exec sleep 100'
SYN, FIN, RST, ACK = 2, 1, 4, 16


@dataclass
class Segment:
    at: float
    to_host: bool  # from node2 to node1
    port: tuple[int, int]  # of node2 and of node1: the connection
    flags: int
    data: bytes


@dataclass
class Job:
    start: float  # seconds
    restart: float
    began: float  # by the clock
    ran: float
    killed: float
    again: float
    segments: list[Segment]


def segments(pcap: Path) -> Iterator[Segment]:
    raw = pcap.read_bytes()
    at = 24
    while at + 16 <= len(raw):
        seconds, micro, size, _ = struct.unpack_from("=IIII", raw, at)
        frame = raw[at + 16:at + 16 + size]
        at += 16 + size
        if frame[12:14] != b"\x08\x00" or frame[23] != 6:
            continue  # not TCP on IPv4
        ip = 14 + (frame[14] & 15) * 4
        end = 14 + int.from_bytes(frame[16:18], "big")
        source, target = struct.unpack_from(">HH", frame, ip)
        to_host = frame[29] == 2  # 10.77.0.2
        yield Segment(seconds + micro / 1e6, to_host, (source, target) if to_host else (target, source),
                      frame[ip + 13], frame[ip + (frame[ip + 12] >> 4) * 4:end])


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.005)


def play(muster: Path, trip_ms: float, options: tuple[str, ...] = ()) -> Job:
    """One job through a cable on which a round trip takes so long."""
    with tempfile.TemporaryDirectory() as at, Rig(2, ipv6=False) as rig:
        pcap = Path(at) / "cable.pcap"
        rig[1].bad_cable(delay_ms=trip_ms / 2, pcap=pcap)
        macs = [h.run(["ip", "-br", "link", "show", "eth0"]).split()[2] for h in rig.hosts]
        for here, there in itertools.permutations((0, 1)):  # ARP is not what we count
            rig[here].run(["ip", "neigh", "replace", rig[there].ip, "lladdr", macs[there], "dev", "eth0"])
        stamps = Path(at) / "stamps"
        stamps.mkdir()
        command = [str(muster), "run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
                   f"--rdzv-endpoint=node1:{PORT}", "--rdzv-id=count", "--max-restarts=3", "--monitor-interval=0.01",
                   *options, "--no-python", "/bin/bash", "-c", WORKER, str(stamps)]

        def ran(attempt: int) -> bool:
            return all((stamps / f"{rank}.{attempt}").exists() for rank in (0, 1))

        def stamp(rank: int, attempt: int) -> tuple[float, int]:
            when, pid = (stamps / f"{rank}.{attempt}").read_text().split()
            return float(when), int(pid)

        nodes = [rig[0].start(command)]
        wait_for(lambda: f":{PORT} " in rig[0].run(["ss", "-Hltn"]))
        time.sleep(0.3)
        began = time.time()
        nodes.append(rig[1].start(command))
        try:
            wait_for(lambda: ran(0))
            far = max((0, 1), key=lambda rank: os.readlink(f"/proc/{stamp(rank, 0)[1]}/ns/net") == rig[1].net)
            started = stamp(far, 0)[0]
            time.sleep(0.3 + trip_ms * 5e-3)  # until nobody says anything
            killed = time.time()
            os.kill(stamp(far, 0)[1], signal.SIGKILL)
            wait_for(lambda: ran(1))
            again = max(stamp(rank, 1)[0] for rank in (0, 1))
            time.sleep(0.1 + trip_ms * 2e-3)
        except TimeoutError:
            sys.exit("the job does not go on:\n" + "\n".join(n.output() for n in nodes))
        return Job(started - began, again - killed, began, started, killed, again, list(segments(pcap)))


def connections(job: Job) -> tuple[int, int]:
    """Of node2 to node1, in all and at once."""
    ends: dict[tuple[int, int], set[bool]] = {}  # of those that are there, which sides have closed
    total = most = 0
    for s in job.segments:
        if s.to_host and s.flags & SYN and s.port not in ends:
            ends[s.port] = set()
            total += 1
        if s.port in ends and s.flags & FIN:
            ends[s.port].add(s.to_host)
        if s.flags & RST or len(ends.get(s.port, ())) == 2:
            ends.pop(s.port, None)
        most = max(most, len(ends))
    return total, most


OPERATIONS = ("VALIDATE SET COMPARE_SET GET ADD CHECK WAIT GETNUMKEYS DELETE_KEY APPEND MULTI_GET MULTI_SET "
              "CANCEL_WAIT PING QUEUE_PUSH QUEUE_POP QUEUE_LEN").split()


def readable(s: Segment) -> str:
    """What a segment says, as far as it can be told without knowing what it answers."""
    if not s.data:
        return "connect" if s.flags & SYN and s.to_host else "accept" if s.flags & SYN else "close"
    text = re.sub(r"[^ -~]+", " ", s.data.decode("latin-1")).strip()[:100]
    if not s.to_host:
        return f"{len(s.data)} bytes: {text}"
    first = OPERATIONS[s.data[0]] if s.data[0] < len(OPERATIONS) else "?"
    if first == "QUEUE_PUSH" and len(s.data) > 9:  # a message of ours: version and kind come first
        at = 9 + int.from_bytes(s.data[1:9], "little") + 8
        if len(s.data) > at + 1:
            first += f" version {s.data[at]} kind {s.data[at + 1]}"
    return f"{first}, {len(s.data)} bytes: {text}"


def show(muster: Path, trip_ms: float, options: tuple[str, ...]) -> None:
    """Every message of one job. Those that wait for each other stand a round trip apart."""
    job = play(muster, trip_ms, options)
    marks = [(job.began, "node2 starts"), (job.ran, "the worker of node2 runs"), (job.killed, "it is killed"),
             (job.again, "both run again")]
    names: dict[tuple[int, int], str] = {}
    lines = [(at, f"--- {words}") for at, words in marks]
    for s in job.segments:
        if s.data or s.flags & (SYN | FIN | RST):
            name = names.setdefault(s.port, chr(ord("A") + len(names) % 26))
            lines.append((s.at, f"{name} {'2 to 1' if s.to_host else '1 to 2'}  {readable(s)}"))
    since = job.began
    for at, words in sorted(lines):
        if words.endswith("it is killed"):
            since = at
        print(f"{(at - since) * 1e3 / trip_ms:6.2f}  {words}")
    print("connections: {} in all, {} at once".format(*connections(job)))


def secret_options(at: str) -> tuple[str, ...]:
    token = Path(at) / "token"
    token.write_text("a secret of thirty-two characters")
    token.chmod(0o600)
    return (f"--token-file={token}",)


def measure(muster: Path, runs: int, trips_ms: tuple[float, float]) -> dict[str, str]:
    out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as at:
        for words, options in (("", ()), (", with a secret", secret_options(at))):
            jobs = {ms: [play(muster, ms, options) for _ in range(runs)] for ms in (*trips_ms, 10.0)}
            low, high = trips_ms
            for name in ("start", "restart"):
                took = {ms: statistics.median(getattr(j, name) for j in jobs[ms]) for ms in jobs}
                what = {"start": "start of a remote node until its worker runs",
                        "restart": "kill of a worker on the remote node until all run again"}[name]
                out[f"round trips, {what}{words}"] = f"{(took[high] - took[low]) * 1e3 / (high - low):.1f}"
                out[f"10 ms between the nodes, {what}{words}"] = f"{took[10.0] * 1e3:.0f} ms"
            counts = [connections(j) for j in jobs[high]]
            out[f"connections of a remote node to the host{words}"] = "{} in all, {} at once".format(*max(counts))
    return out
