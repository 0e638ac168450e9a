#!/usr/bin/env python3
"""The store server beside torch's, Redis and a bare echo server.

Every server runs on one core, the load generator (muster-bench) on another. Each figure
is the median of several runs, taken in turn, so that a change of the machine's mood
meets all of them. `--quick` runs once and short, to see that everything works.
JSON lines: build/bench/store.jsonl.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
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
# Sizes of the messages of muster-bench load, for the echo server.
SIZES = {"add": (25, 8), "get": (15, 72), "check": (23, 1)}


class Dns:
    """Torch's server asks for the name of each client that connects, and waits for the
    answer. What that costs depends on the name service: none at all ("files"), one
    nearby ("near": no such name, after a millisecond), one that never answers
    ("silent"). Only root can set these up; for others the machine's own is used."""

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

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(name: str, dns: Dns, op: str = "add") -> Server:
    if name == "muster":
        return Server(name, [MUSTER, "store", "--bind", "127.0.0.1", "--port", "0"])
    if name == "torch":
        return Server(name, dns.wrap("files", [PYTHON, "-c", TORCH]))
    if name == "redis":
        port = free_port()
        return Server(name, ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save",
                             "", "--appendonly", "no", "--maxclients", "30000"], port)
    size, reply = SIZES[op]
    return Server(name, [BENCH, "echo", "--size", str(size), "--reply", str(reply)])


def bench(*args: str) -> dict:
    run = subprocess.run([*LOAD_ON, BENCH, *args], capture_output=True,
                         text=True)
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


class Report:
    def __init__(self) -> None:
        path = ROOT / "build/bench/store.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")
        self.missed: list[str] = []

    def raw(self, **row) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    def goal(self, what: str, value: float, at_least: float) -> str:
        ok = value >= at_least
        if not ok:
            self.missed.append(f"{what}: {value:.2f}, the goal is {at_least:.2f}")
        return f"{value:7.2f}x{' ' if ok else '!'}"


def median(runs: list[dict], field: str) -> float:
    return statistics.median(r[field] for r in runs)


def loads(report: Report, dns: Dns, times: int, seconds: float, ops: list[str]) -> None:
    names = ["muster", "torch", "redis", "echo"]
    print("closed loop: rate of muster as a multiple of the others'; p99 and server CPU of "
          "each, in microseconds\n")
    print(f"{'op':6}{'conns':>6}{'muster/s':>10} {'/torch':>9} {'/redis':>9} {'/echo':>9}   "
          f"{'p99: muster torch redis echo':38} cpu/op: muster torch redis echo")
    for op in ops:
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(start(n, dns, op)) for n in names]
            for conns in (1, 16, 256, 1000):
                runs: dict[str, list[dict]] = {n: [] for n in names}
                for _ in range(times):
                    for s in servers:
                        r = load(s, op, conns, seconds)
                        report.raw(server=s.name, **r)
                        runs[s.name].append(r)
                rate = {n: median(r, "rate") for n, r in runs.items()}
                p99 = {n: median(r, "p99_us") for n, r in runs.items()}
                cpu = {n: median(r, "cpu_us") for n, r in runs.items()}
                what = f"{op} {conns}"
                g = [report.goal(f"{what}: rate/{n}", rate["muster"] / rate[n], least)
                     for n, least in (("torch", 1.2), ("redis", 1.0), ("echo", 0.85))]
                for n in ("torch", "redis"):
                    report.goal(f"{what}: {n}'s CPU per operation/muster's",
                                cpu[n] / cpu["muster"], 1.0)
                for n in ("torch", "redis", "echo"):
                    report.goal(f"{what}: {n}'s p99/muster's", p99[n] / p99["muster"], 1.0)
                print(f"{op:6}{conns:6}{rate['muster']:10.0f} {' '.join(g)}   "
                      + " ".join(f"{p99[n]:9.1f}" for n in names) + "   "
                      + " ".join(f"{cpu[n]:7.2f}" for n in names), flush=True)


def crowds(report: Report, dns: Dns, times: int, clients: int) -> None:
    for mode, least in (("join", 3.0), ("wake", 2.0)):
        took: dict[str, list[dict]] = {"muster": [], "torch": []}
        for _ in range(times):
            for name in took:
                with start(name, dns) as s:
                    r = bench("crowd", mode, "--port", str(s.port), "--count", str(clients))
                    report.raw(server=name, **r)
                    took[name].append(r)
        ours, theirs = (median(took[n], "seconds") for n in ("muster", "torch"))
        words = {"join": "connect, VALIDATE, PING, ADD, wait for the last",
                 "wake": "one SET to the last wake-up"}[mode]
        print(f"{clients} clients: {words}: {ours * 1e3:.1f} ms, torch {theirs * 1e3:.1f} ms: "
              f"{report.goal(mode, theirs / ours, least)}", flush=True)


def names(report: Report, dns: Dns, clients: int) -> None:
    if not dns.root:
        print("name servers near and silent: only root can set them up, left out")
        return
    argvs = {"muster": [MUSTER, "store", "--bind", "127.0.0.1", "--port", "0"],
             "torch": [PYTHON, "-c", TORCH]}
    for kind, words in (("near", "a name server that answers after 1 ms"),
                        ("silent", "a name server that never answers")):
        took = {}
        for name, argv in argvs.items():
            began = time.monotonic()
            with Server(name, dns.wrap(kind, argv)) as s:
                up = time.monotonic() - began
                r = bench("crowd", "join", "--port", str(s.port), "--count", str(clients))
            report.raw(server=name, dns=kind, up_s=up, **r)
            took[name] = (up, r["seconds"])
        print(f"the same with {words}: {took['muster'][1] * 1e3:.1f} ms, torch "
              f"{took['torch'][1] * 1e3:.1f} ms: {took['torch'][1] / took['muster'][1]:.2f}x "
              f"(until the server was up: {took['muster'][0]:.2f} s, torch "
              f"{took['torch'][0]:.2f} s)", flush=True)


def memory(report: Report, dns: Dns, conns: int, keys: int) -> None:
    idle, full, total = {}, {}, {}
    for name in ("muster", "torch"):
        with start(name, dns) as s:
            bench("crowd", "fill", "--port", str(s.port), "--count", "1")
            before = s.memory()
            p = subprocess.Popen([BENCH, "crowd", "idle", "--port", str(s.port), "--count",
                                  str(conns)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True)
            p.stdout.readline()
            idle[name] = (s.memory() - before) / conns
            p.stdin.close()
            p.wait()
        with start(name, dns) as s:
            before = s.memory()
            bench("crowd", "fill", "--port", str(s.port), "--count", str(keys), "--size", "64")
            total[name] = s.memory()
            full[name] = (total[name] - before) / keys
        report.raw(bench="memory", server=name, idle_bytes=idle[name], key_bytes=full[name],
                   total_with_keys=total[name])
    print(f"memory per idle connection: {idle['muster']:.0f} bytes, torch {idle['torch']:.0f}: "
          f"{report.goal('memory per connection', idle['torch'] / idle['muster'], 3.0)} less")
    print(f"memory of the server with {keys} keys of 64 bytes: {total['muster'] / 1e6:.1f} MB, torch "
          f"{total['torch'] / 1e6:.1f} MB: "
          f"{report.goal('memory with keys', total['torch'] / total['muster'], 3.0)} less "
          f"(growth per key: {full['muster']:.0f} bytes, torch {full['torch']:.0f})", flush=True)


def starts(report: Report, times: int) -> None:
    ours = [bench("crowd", "start", "--", MUSTER, "store", "--bind", "127.0.0.1", "--port", "0")
            for _ in range(times * 3)]
    theirs = [bench("crowd", "start", "--", PYTHON, "-c", TORCH) for _ in range(times)]
    a, b = median(ours, "seconds"), median(theirs, "seconds")
    report.raw(bench="start", muster=a, torch=b)
    print(f"start to first answer: {a * 1e3:.1f} ms, torch in Python {b * 1e3:.0f} ms: "
          f"{report.goal('start', b / a, 200)}", flush=True)


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--times", type=int)
    ap.add_argument("--seconds", type=float)
    ap.add_argument("--ops", default="add,get,check")
    ap.add_argument("--realtime", action="store_true",
                    help="as root: other work on the machine does not come in between")
    ap.add_argument("--rows", default="load,crowd,dns,memory,start")
    a = ap.parse_args()
    times = a.times or (1 if a.quick else 5)
    seconds = a.seconds or (0.3 if a.quick else 2.0)
    rows = a.rows.split(",")
    if a.realtime:
        for on in (SERVER_ON, LOAD_ON):
            on[:0] = ["chrt", "-f", "1"]
    report, dns = Report(), Dns()
    if "load" in rows:
        loads(report, dns, times, seconds, a.ops.split(","))
        print()
    if "crowd" in rows:
        crowds(report, dns, times, 4096)
    if "dns" in rows:
        names(report, dns, 4096)
    if "memory" in rows:
        memory(report, dns, 5000, 100000)
    if "start" in rows:
        starts(report, times)
    shutil.rmtree(dns.dir, ignore_errors=True)
    if report.missed:
        print("\nbelow the goal (marked with !):")
        print("\n".join("  " + m for m in report.missed))
    return 0


sys.exit(main())
