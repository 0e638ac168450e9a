#!/usr/bin/env python3
"""Rounds of many nodes: ours on `muster store`, beside torch's handlers on torch's store.

Prints a table in Markdown, and writes JSON lines to build/bench/scale.jsonl. Alone on the
machine it takes about two minutes.

`bench/bench_scale.py --old COMMIT [--times 5]` plays rounds of 128, 1,000 and 10,000 nodes and the loss of
one of 1,000 instead, with the programs of that commit and of this tree in turns.
"""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from older import build, in_turns, show_turns
from table import Table

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "build/muster-bench"
PYTHON = ROOT / "build/venv/bin/python"


def ours(*args: str, program: Path = BENCH) -> dict:
    run = subprocess.run([program, "rdzv", *args], capture_output=True, text=True)
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


def old_and_new(commit: str, times: int) -> None:
    programs = build(commit, "muster-bench"), build("", "muster-bench")
    rows = []

    def add(nodes: str, figures: list[tuple[str, str, str, float]], *args: str) -> None:
        got = in_turns(*programs, times, lambda program: ours("--nodes", nodes, *args, program=program))
        for work, field, form, scale in figures:
            a, b, ratio = got[field]
            rows.append((work, form, (a * scale, b * scale, ratio)))

    add("128", [("a round of 128 nodes", "seconds", "{:.1f} ms", 1e3)])
    add("1000", [("1,000 nodes, first join to last rank", "seconds", "{:.1f} ms", 1e3),
                 ("the same, the host's CPU", "host_cpu_seconds", "{:.1f} ms", 1e3),
                 ("1,000 nodes, all once more", "again_seconds", "{:.1f} ms", 1e3),
                 ("1,000 nodes, one lost by reset: the others told", "lost_seconds", "{:.1f} ms", 1e3),
                 ("requests for each of 1,000 nodes", "operations", "{:.2f}", 1e-3),
                 ("bytes for each of 1,000 nodes", "bytes", "{:.0f}", 1e-3)], "--rounds", "2", "--lose")
    add("10000", [("10,000 nodes, first join to last rank", "seconds", "{:.2f} s", 1),
                  ("the same, the host's CPU", "host_cpu_seconds", "{:.2f} s", 1),
                  ("10,000 nodes, the host's memory", "host_peak_kb", "{:.0f} kB", 1)])
    show_turns(commit, rows)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--old", metavar="COMMIT")
    p.add_argument("--times", type=int, default=5)
    a = p.parse_args()
    if a.old:
        old_and_new(a.old, a.times)
        return
    out = ROOT / "build/bench"
    out.mkdir(parents=True, exist_ok=True)
    table = Table()
    log = (out / "scale.jsonl").open("w")

    def row(work: str, here: str, beside: str, goal: str, met: bool | None, **data: float) -> None:
        print(f"{work}: {here}{beside and ', ' + beside}", flush=True)
        table.add(work, here, beside, goal, met)
        log.write(json.dumps({"work": work, **data}) + "\n")
        log.flush()

    us = median_of(5, "--nodes", "128")["seconds"]
    torch = ours("--nodes", "128", "--torch")["torch_seconds"]  # its rounds take long
    row("a round of 128 nodes, all on one machine", f"{us * 1e3:.1f} ms",
        f"torch's handlers on torch's store {torch:.2f} s ({torch / us:.0f}x)", "50x", torch / us >= 50,
        ours=us, torch=torch)
    k1 = median_of(5, "--nodes", "1000", "--rounds", "2", "--lose")
    row("1,000 nodes, first join to last rank", f"{k1['seconds']:.3f} s", "", "0.5 s", k1["seconds"] <= 0.5, **k1)
    row("1,000 nodes, all once more", f"{k1['again_seconds']:.3f} s", "", "", None, ours=k1["again_seconds"])
    row("1,000 nodes, one lost by reset: the others told", f"{k1['lost_seconds'] * 1e3:.1f} ms", "", "200 ms",
        k1["lost_seconds"] <= 0.2, ours=k1["lost_seconds"])
    k10 = median_of(5, "--nodes", "10000")
    memory = k10["host_peak_kb"] / 1024
    row("10,000 nodes, first join to last rank", f"{k10['seconds']:.2f} s", "", "5 s", k10["seconds"] <= 5, **k10)
    growth = k10["seconds"] / k1["seconds"]
    row("growth from 1,000 to 10,000 nodes", f"{growth:.1f}x", "", "12x", growth <= 12, ours=growth)
    row("requests and bytes for each of 10,000 nodes",
        f"{k10['operations'] / 1e4:.1f} and {k10['bytes'] / 1e4:.0f}",
        f"of 1,000: {k1['operations'] / 1e3:.1f} and {k1['bytes'] / 1e3:.0f}", "the same", None,
        requests=k10["operations"] / 1e4, bytes=k10["bytes"] / 1e4)
    row("10,000 nodes, the host's memory", f"{memory:.0f} MB", "", "200 MB", memory <= 200, ours=memory)
    beat = ours("--nodes", "10000", "--beat", "10")["beat_cpu"]
    row("heartbeats of 10,000 nodes every 5 s, the host's CPU", f"{beat * 100:.1f} % of a core", "", "5 %",
        beat <= 0.05, ours=beat)
    m = mixed(1000, 2)
    row("1,000 nodes of ours and 2 of torch in one round", f"{m:.2f} s", "", "10 s", m <= 10, ours=m)
    table.show()


if __name__ == "__main__":
    main()
