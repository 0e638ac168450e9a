#!/usr/bin/env python3
"""Rounds of many nodes: ours on `muster store`, beside torch's handlers on torch's store.

Prints a table with ratios, and writes JSON lines to build/bench/scale.jsonl.
"""
from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "build/muster-bench"
PYTHON = ROOT / "build/venv/bin/python"
TORCH_PROCESSES = 4


def ours(*args: str) -> dict:
    run = subprocess.run([BENCH, "rdzv", *args], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"muster-bench rdzv {' '.join(args)}: {run.stderr.strip()}")
    return json.loads(run.stdout.splitlines()[-1])


def median_of(times: int, *args: str) -> dict:
    runs = [ours(*args) for _ in range(times)]
    return {k: statistics.median(r[k] for r in runs) for k in runs[0] if k != "bench"}


class TorchNodes:
    """A process of torch_nodes.py."""

    def __init__(self, *args: str) -> None:
        self.proc = subprocess.Popen(
            [PYTHON, ROOT / "bench/torch_nodes.py", *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> list[str]:
        text = self.proc.stdout.readline()
        if not text:
            sys.exit("a process of torch nodes ended early")
        return text.split()

    def go(self) -> None:
        self.proc.stdin.write("\n")
        self.proc.stdin.flush()

    def stop(self) -> None:
        self.proc.kill()
        self.proc.wait()


def torch_round(nodes: int) -> float:
    """Seconds from the start signal to the last of `nodes` torch handlers being told."""
    each = nodes // TORCH_PROCESSES
    crews = [TorchNodes("127.0.0.1", "0", "bench", "0", str(each), str(nodes), "1", "host")]
    port = crews[0].line()[1]
    for i in range(1, TORCH_PROCESSES):
        crews.append(TorchNodes("127.0.0.1", port, "bench", str(i * each), str(each),
                                str(nodes), "1"))
    for c in crews:
        while c.line() != ["ready"]:
            pass
    start = last = time.monotonic()
    for c in crews:
        c.go()
    for c in crews:
        for _ in range(each):
            last = max(last, float(c.line()[4]))
    for c in crews:
        c.stop()
    return last - start


def mixed(nodes: int, torch_nodes: int) -> float:
    """Seconds until nodes of ours and of torch have their ranks in one round."""
    port_file = ROOT / "build/bench/port"
    port_file.unlink(missing_ok=True)
    store = subprocess.Popen(
        [ROOT / "build/muster", "store", "--bind", "127.0.0.1", "--port", "0",
         "--port-file", port_file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (port_file.exists() and port_file.read_text().strip()):
        time.sleep(0.01)
    port = port_file.read_text().strip()
    crew = TorchNodes("127.0.0.1", port, "bench", "0", str(torch_nodes),
                      str(nodes + torch_nodes), "1")
    while crew.line() != ["ready"]:
        pass
    bench = subprocess.Popen(
        [BENCH, "rdzv", "--nodes", str(nodes), "--more", str(torch_nodes), "--endpoint",
         f"127.0.0.1:{port}", "--beat", "3"], stdout=subprocess.PIPE, text=True)
    start = time.monotonic()
    crew.go()
    last = max(float(crew.line()[4]) for _ in range(torch_nodes)) - start
    out, _ = bench.communicate()
    crew.stop()
    store.terminate()
    store.wait()
    return max(last, json.loads(out.splitlines()[-1])["seconds"])


def main() -> None:
    rows: list[tuple[str, str, str, str]] = []
    out = (ROOT / "build/bench")
    out.mkdir(parents=True, exist_ok=True)
    log = (out / "scale.jsonl").open("w")

    def row(work: str, us: str, peer: str, goal: str, **data: float) -> None:
        rows.append((work, us, peer, goal))
        log.write(json.dumps({"work": work, **data}) + "\n")
        log.flush()
        print(f"{work:52} {us:>24} {peer:>16}   goal: {goal}", flush=True)

    us = median_of(5, "--nodes", "128")["seconds"]
    peer = statistics.median(torch_round(128) for _ in range(3))
    row("128 nodes: start to last rank", f"{us * 1e3:.1f} ms",
        f"torch {peer:.2f} s", f"50x; it is {peer / us:.0f}x", ours=us, torch=peer)
    k1 = median_of(5, "--nodes", "1000", "--rounds", "2", "--lose")
    row("1,000 nodes: first join to last rank", f"{k1['seconds']:.3f} s", "", "0.5 s",
        ours=k1["seconds"])
    row("1,000 nodes: all again", f"{k1['again_seconds']:.3f} s", "", "",
        ours=k1["again_seconds"])
    row("1,000 nodes: one lost, the others told", f"{k1['lost_seconds'] * 1e3:.1f} ms", "",
        "200 ms", ours=k1["lost_seconds"])
    k10 = median_of(3, "--nodes", "10000", "--processes", "4", "--beat", "10")
    row("10,000 nodes: first join to last rank", f"{k10['seconds']:.2f} s", "",
        f"5 s; growth {k10['seconds'] / k1['seconds']:.1f}x of at most 12x",
        ours=k10["seconds"])
    row("10,000 nodes: host's memory", f"{k10['host_peak_kb'] / 1024:.0f} MB", "",
        "200 MB", ours=k10["host_peak_kb"])
    row("10,000 nodes: heartbeats, host's CPU", f"{k10['beat_cpu'] * 100:.1f} %", "",
        "5 % of a core", ours=k10["beat_cpu"])
    m = mixed(1000, 2)
    row("1,000 of ours and 2 of torch in one round", f"{m:.2f} s", "", "10 s", ours=m)


if __name__ == "__main__":
    main()
