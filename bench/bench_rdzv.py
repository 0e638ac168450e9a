#!/usr/bin/env python3
"""Two nodes on one machine: from the last one's arrival until both have their rank.

Ours on our store (hosted, and reading and writing the state), ours on torch's store, and
torch's own handler. Prints a table and appends JSON lines to build/bench/rdzv.jsonl.

    build/venv/bin/python bench/bench_rdzv.py [rounds] [--old COMMIT]

With --old our own nodes on our own store alone, those of that commit and of this tree in turns.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/interop"))

import rdzv_nodes  # noqa: E402
from older import build, in_turns, show_turns  # noqa: E402
from rdzv_nodes import Node, TorchNode, free_port  # noqa: E402
from table import Table  # noqa: E402


# Without a host that tells them, our nodes stay in a round for 1.2 s, until even those who
# look once a second have seen it: a running job is always older.
SETTLE_S = 1.5


def timed_ours(conf: str, at: str, run: str) -> float:
    """Both processes are up and connected by a first round; the second one is timed."""
    a = Node(at, run, (2, 2), "a", conf)
    b = Node(at, run, (2, 2), "b", conf)
    try:
        a.tell("next")
        b.tell("next")
        a.joined(), b.joined()
        time.sleep(SETTLE_S)
        a.tell("next")  # a has left the round and waits;
        time.sleep(0.3)
        start = time.perf_counter()
        b.tell("next")  # b is the last to arrive.
        done = [a.joined(), b.joined()]
        assert [d[1] for d in done] == [0, 1]
        return time.perf_counter() - start
    finally:
        a.end()
        b.end()


def timed_torch(at: str, run: str) -> float:
    a = TorchNode(at, run, (2, 2), "127.0.0.1", is_host=True)
    b = TorchNode(at, run, (2, 2), "localhost")
    a.tell_next()
    b.tell_next()
    a.joined(), b.joined()
    time.sleep(SETTLE_S)
    a.tell_next()
    time.sleep(0.3)
    start = time.perf_counter()
    b.tell_next()
    a.joined(), b.joined()
    took = time.perf_counter() - start
    a.end()
    b.end()
    return took


def old_and_new(commit: str, rounds: int) -> None:
    def play(program: Path) -> dict[str, float]:
        rdzv_nodes.NODE = program
        return {"ms": timed_ours("", f"127.0.0.1:{free_port()}", "bench") * 1e3}

    target = "tests/interop/interop_rdzv_node"
    got = in_turns(build(commit, target), build("", target), rounds, play)
    show_turns(commit, [("two nodes, last arrival to both having their rank", "{:.2f} ms", got["ms"])])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rounds", type=int, nargs="?", default=5)
    p.add_argument("--old", metavar="COMMIT")
    a = p.parse_args()
    if a.old:
        old_and_new(a.old, a.rounds)
        return
    rounds = a.rounds
    from datetime import timedelta
    from torch.distributed import TCPStore

    torch_store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                           timeout=timedelta(seconds=60))
    at_torch = f"127.0.0.1:{torch_store.port}"
    cases = {
        "muster, its own store": lambda i: timed_ours("", f"127.0.0.1:{free_port()}", "bench"),
        "muster, its own store, hosted=0": lambda i: timed_ours("hosted=0", f"127.0.0.1:{free_port()}", "bench"),
        "muster, torch's store": lambda i: timed_ours("is_host=0", at_torch, f"bench{i}"),
        "torch, torch's store": lambda i: timed_torch(f"127.0.0.1:{free_port()}", "bench"),
    }
    out = ROOT / "build/bench/rdzv.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{'two nodes, last arrival to both having their rank':50} {'median':>10} {'worst':>10}")
    medians = {}
    with out.open("a") as lines:
        for name, run in cases.items():
            ms = [run(i) * 1000 for i in range(rounds)]
            medians[name] = statistics.median(ms)
            print(f"{name:50} {statistics.median(ms):7.1f} ms {max(ms):7.1f} ms", flush=True)
            lines.write(json.dumps({"bench": "rdzv", "case": name, "ms": ms, "at": time.time()}) + "\n")
    us, theirs = medians["muster, its own store"], medians["torch, torch's store"]
    foreign, table = medians["muster, torch's store"], Table()
    table.add("two nodes, last arrival to both having their rank", f"{us:.1f} ms",
              f"torch's handlers {theirs:.0f} ms ({theirs / us:.0f}x)", "5 ms", us < 5)
    table.add("the same on torch's store", f"{foreign:.1f} ms", "")
    table.show()


if __name__ == "__main__":
    main()
