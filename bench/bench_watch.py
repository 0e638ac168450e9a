#!/usr/bin/env python3
"""A job of 10,000 nodes that is looked at once a second: how fast the coordinator answers, and what
it costs more than unwatched. See bench/watch.c: real store, job channel, status and HTTP; the
other nodes are played by one process.

Prints a table in Markdown, and writes JSON lines to build/bench/watch.jsonl. Alone on the machine
it takes about four minutes. `--quick`: 1,000 nodes and shorter; `--nodes N`.
"""
from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
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


def main() -> int:
    table = Table()
    bench = subprocess.Popen([ROOT / "build/muster-bench", "watch", "--nodes", str(NODES)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    try:
        told = json.loads(bench.stdout.readline())
        url, pid = told["url"], told["pid"]
        by = time.monotonic() + 900
        while True:
            job = json.loads(get(url + "status.json")[1])["job"]
            if job["ranks"] == NODES * 8 and job["nodes"] == NODES:
                break
            if time.monotonic() > by:
                sys.exit(f"bench_watch: only {job}")
            time.sleep(1)
        time.sleep(5)
        seconds = 10 if QUICK else 60  # three times as long as the nodes are asked in
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
