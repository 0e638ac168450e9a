#!/usr/bin/env python3
"""A job of 10,000 nodes that is looked at once a second: how fast the coordinator answers, and what
it costs more than unwatched. See bench/watch.c: real store, job channel, status and HTTP; the
other nodes are played by one process. And what 100 viewers of a page cost its workers.

Prints a table in Markdown, and writes JSON lines to build/bench/watch.jsonl. Alone on the machine
it takes about six minutes. `--quick`: 1,000 nodes and shorter; `--nodes N`.
"""
from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from table import Table

ROOT = Path(__file__).resolve().parent.parent
QUICK = "--quick" in sys.argv
NODES = int(sys.argv[sys.argv.index("--nodes") + 1]) if "--nodes" in sys.argv else 1000 if QUICK else 10000


def cpu(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def get(url: str) -> tuple[float, bytes]:
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as r:
        text = r.read()
    return time.monotonic() - began, text


def share(pid: int, seconds: float, look=lambda: None) -> float:
    """Of a core, while look() is called once a second."""
    before, began = cpu(pid), time.monotonic()
    while time.monotonic() < began + seconds:
        at = time.monotonic()
        look()
        time.sleep(max(0.0, 1 - (time.monotonic() - at)))
    return (cpu(pid) - before) / (time.monotonic() - began)


COUNTS = """
import os, sys, time
n, path = 0, f"{sys.argv[1]}/{os.environ['RANK']}"
while True:
    by = time.monotonic() + 0.25
    while time.monotonic() < by:
        n += 1
    with open(path + ".new", "w") as f:
        f.write(str(n))
    os.replace(path + ".new", path)
"""


def viewers(table: Table) -> None:
    """What two workers that compute get done while 100 browsers follow the page, and while nobody does."""
    seconds = 2 if QUICK else 5
    with tempfile.TemporaryDirectory() as at:
        script = Path(at) / "counts.py"
        script.write_text(COUNTS)
        job = subprocess.Popen([ROOT / "build/muster", "run", "--standalone", "--nproc-per-node=2",
                                "--status-http=127.0.0.1:0", script, at], stderr=subprocess.DEVNULL)
        try:
            def url() -> str:
                return subprocess.run([ROOT / "build/muster", "status", "--url", str(job.pid)], capture_output=True,
                                      text=True).stdout.strip()
            while not (url() and all((Path(at) / str(r)).exists() for r in range(2))):
                time.sleep(0.05)
            where = urllib.parse.urlparse(url())

            def work() -> tuple[float, float]:
                before, used, began = [int((Path(at) / str(r)).read_text()) for r in range(2)], cpu(job.pid), time.monotonic()
                time.sleep(seconds)
                after, took = [int((Path(at) / str(r)).read_text()) for r in range(2)], time.monotonic() - began
                return (sum(after) - sum(before)) / took, (cpu(job.pid) - used) / took
            ratios, shares = [], []
            for _ in range(2 if QUICK else 5):
                alone, _ = work()
                watching = []
                for _ in range(100):
                    c = socket.create_connection((where.hostname, where.port))
                    c.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    watching.append(c)
                watched, used = work()
                for c in watching:
                    c.close()
                ratios.append(watched / alone)
                shares.append(used)
            ratio, used = statistics.median(ratios), statistics.median(shares)
            table.add("work of two workers while 100 viewers follow the page", f"{ratio * 100:.1f} % of that without",
                      f"the agent: {used * 100:.2f} % of a core", "97 %", ratio > 0.97)
        finally:
            job.terminate()
            job.wait()


def main() -> int:
    table = Table()
    viewers(table)
    bench = subprocess.Popen([ROOT / "build/muster-bench", "watch", "--nodes", str(NODES)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    try:
        told = json.loads(bench.stdout.readline())
        time.sleep(NODES / 1000)  # as long as nobody asks, they come faster
        url, pid = told["url"], told["pid"]
        by = time.monotonic() + 900
        while True:
            job = json.loads(get(url + "status.json")[1])["job"]
            if job["ranks"] == NODES * 8 and job["nodes"] == NODES:
                break
            if time.monotonic() > by:
                sys.exit(f"bench_watch: only {job}")
            time.sleep(5)
        time.sleep(5)
        seconds = 10 if QUICK else max(20, NODES * 0.011)  # twice as long as the nodes are asked in
        alone = share(pid, seconds)
        took: dict[str, list[float]] = {}
        sizes: dict[str, int] = {}

        def look(path: str) -> None:
            t, text = get(url + path)
            took.setdefault(path, []).append(t)
            sizes[path] = len(text)
        costs = {path: share(pid, seconds, lambda p=path: look(p)) for path in ("metrics", "status.json")}
        rows = []
        for path, cost in costs.items():
            most, mostly, more = max(took[path]), statistics.median(took[path]), cost - alone
            table.add(f"{NODES:,} nodes, /{path} once a second ({sizes[path] / 1e3:,.0f} kB)",
                      f"{mostly * 1e3:.1f} ms, at most {most * 1e3:.1f} ms", "", "50 ms", most < 0.05)
            table.add(f"{NODES:,} nodes, CPU more than unwatched, /{path}", f"{more * 100:.2f} % of a core",
                      f"{alone * 100:.2f} % unwatched", "1 %", more < 0.01)
            rows.append({"path": path, "seconds": took[path], "cpu": cost, "unwatched": alone})
        (ROOT / "build/bench").mkdir(parents=True, exist_ok=True)
        (ROOT / "build/bench/watch.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        table.show()
    finally:
        bench.kill()
        bench.wait()
    return 0


sys.exit(main())
