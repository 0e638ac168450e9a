#!/usr/bin/env python3
"""Rounds on a real etcd: etcd-v2 with our nodes and with torch's own, and etcd-v3 beside
c10d on `muster store`. A process for each of our nodes, four processes of threads for
torch's. Time is from the start signal until the last node has rank and address: of the
first round, and of the next, which all enter at once.

Prints a table and writes JSON lines to build/bench/etcd.jsonl.
`bench_etcd.py 2 8` takes other numbers of nodes.
"""
from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/interop"),
                str(next((ROOT / "build/venv/lib").glob("python*/site-packages")))]

from etcd_nodes import Node, TorchHost  # noqa: E402
from etcd_server import Etcd  # noqa: E402
from table import Table  # noqa: E402

TIMES = 3
CONF = "last_call_timeout=5,join_timeout=300"


def enter(nodes: list) -> float:
    begin = time.monotonic()
    for n in nodes:
        n.send("next")
    answers = [n.answer(300) for n in nodes]
    took = time.monotonic() - begin
    assert all(a.what() == "joined" for a in answers), [a.text for a in answers]
    assert sorted(a.rank for a in answers) == list(range(len(nodes)))
    return took


def measure(make, close, count: int) -> tuple[float, float]:
    first, second = [], []
    for i in range(TIMES):
        nodes = make(count, f"bench-{time.monotonic_ns()}")
        time.sleep(0.5)
        first.append(enter(nodes))
        time.sleep(1.5)
        second.append(enter(nodes))
        close(nodes)
    return statistics.median(first), statistics.median(second)


def main() -> None:
    counts = [int(a) for a in sys.argv[1:]] or [2, 8, 32]
    out = ROOT / "build/bench/etcd.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    hosts = [TorchHost() for _ in range(4)]
    store = subprocess.Popen([ROOT / "build/muster", "store", "--bind", "127.0.0.1", "--port", "0"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        with tempfile.TemporaryDirectory() as directory, Etcd(Path(directory)) as etcd, \
                out.open("a") as log:
            table(counts, hosts, etcd, store.stdout.readline().split()[-1], log)
    finally:
        store.kill()
        store.wait()
        for h in hosts:
            h.close()


def table(counts: list[int], hosts: list, etcd: Etcd, c10d: str, log) -> None:
    for h in hosts:  # until torch is imported
        h.node("etcd-v2", etcd.endpoint, "warm-up", (1, 1), CONF)("closed", seconds=120)

    def ours(backend: str, endpoint: str):
        return lambda n, run: [Node(backend, endpoint, run, (n, n), CONF) for _ in range(n)]

    def torch(n: int, run: str):
        return [hosts[i % 4].node("etcd-v2", etcd.endpoint, run, (n, n), CONF)
                for i in range(n)]

    def kill(nodes: list) -> None:
        for n in nodes:
            n.kill()

    def forget(nodes: list) -> None:
        nodes[0]("shutdown")

    rows = [("etcd-v2, torch", torch, forget),
            ("etcd-v2, ours", ours("etcd-v2", etcd.endpoint), kill),
            ("etcd-v3, ours", ours("etcd-v3", etcd.endpoint), kill),
            ("c10d, ours", ours("c10d", c10d), kill)]
    print(f"{'':16} {'nodes':>5} {'first s':>8} {'next s':>8}")
    closing = Table()
    for count in counts:
        got = {}
        for name, make, close in rows:
            first, second = got[name] = measure(make, close, count)
            print(f"{name:16} {count:5} {first:8.2f} {second:8.2f}", flush=True)
            log.write(json.dumps({"bench": "etcd", "what": name, "nodes": count,
                                  "first_s": round(first, 3),
                                  "next_s": round(second, 3)}) + "\n")
        beside(closing, count, got)
    closing.show()


def beside(closing: Table, count: int, got: dict[str, tuple[float, float]]) -> None:
    """Of each pair the first round and the next, in ms."""
    said = {name: " and ".join(f"{1000 * s:.0f}" for s in pair) + " ms" for name, pair in got.items()}
    ratio = lambda a, b: " and ".join(f"{y / x:.1f}x" for x, y in zip(got[a], got[b]))
    closing.add(f"{count} nodes on etcd-v2, first round and next", said["etcd-v2, ours"],
                f"torch on etcd-v2 {said['etcd-v2, torch']} ({ratio('etcd-v2, ours', 'etcd-v2, torch')})", "faster",
                all(x < y for x, y in zip(got["etcd-v2, ours"], got["etcd-v2, torch"])))
    closing.add(f"{count} nodes on etcd-v3, first round and next", said["etcd-v3, ours"],
                f"c10d on `muster store` {said['c10d, ours']}, torch on etcd-v2 "
                f"({ratio('etcd-v3, ours', 'etcd-v2, torch')})")


main()
