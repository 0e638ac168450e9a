#!/usr/bin/env python3
"""The store server beside torch's, Redis, and servers that only answer (the limit).

Each figure is the median of several runs, taken in turn, and each ratio the median of the
ratios in each turn, so that a change of the machine's mood meets all of them. The
generator never sleeps: what it takes to wake it is not a property of any server. `--quick` runs
once and short, to see that everything works; `--realtime`, as root, keeps other work of
the machine out. The table at the end is the summary. JSON lines: build/bench/store.jsonl;
docs/PERFORMANCE.md says what limits what.

`--old COMMIT` puts the store of that commit in the peers' place, and shows rates and processor time alone.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from dataclasses import dataclass

import store_peers as peers
from older import build, in_turns, show_turns
from store_peers import ROOT, Dns, Server, bench, crowd, load, start

CONNS = (1, 16, 256, 1000)
LEGEND = """
How to read it: one line is one kind of work; `ratio` is how many times better muster is
(more per second, or less time, processor or memory), `goal` what it should be. Where a
line sums up ADD, GET and CHECK it shows the one with the smallest ratio. `limit` is the
ratio of a server that does nothing but answer, on this machine in this run: no server can
be much better."""


@dataclass
class Row:
    work: str
    ours: str
    peer: str
    ratio: float
    goal: float | None = None
    limit: float | None = None


class Report:
    def __init__(self) -> None:
        path = ROOT / "build/bench/store.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")
        self.rows: list[Row] = []

    def raw(self, **row) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    def add(self, *row, **more) -> None:
        self.rows.append(Row(*row, **more))
        r = self.rows[-1]
        print(f"{r.work}: {r.ours}, {r.peer}: {r.ratio:.2f}x", flush=True)

    def table(self) -> None:
        print("\n| work | muster | peer | ratio | goal | limit | |")
        print("| --- | --- | --- | ---: | ---: | ---: | --- |")
        for r in self.rows:
            goal = f"{r.goal:g}x" if r.goal else ""
            limit = f"{r.limit:.2f}x" if r.limit else ""
            met = "" if not r.goal else "met" if r.ratio >= r.goal else "missed"
            print(f"| {r.work} | {r.ours} | {r.peer} | {r.ratio:.2f}x | {goal} | {limit} | {met} |")
        print(LEGEND)


def median(runs: list[dict], field: str) -> float:
    return statistics.median(r[field] for r in runs)


def ratio(runs: dict[str, list[dict]], field: str, name: str, peer: str) -> float:
    """How many times better `name` was than `peer`, turn by turn."""
    pairs = [(a[field], b[field]) for a, b in zip(runs[name], runs[peer])]
    return statistics.median(a / b if field == "rate" else b / a for a, b in pairs)


def loads(report: Report, dns: Dns, times: int, seconds: float, ops: list[str]) -> None:
    names = ["muster", "torch", "redis", "echo"]
    seen: dict[tuple, dict] = {}
    print("closed loop: answers per second, p99 and server CPU in microseconds, of muster, "
          "torch, redis, echo")
    for op in ops:
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(start(n, dns, op)) for n in names]
            for conns in CONNS:
                runs: dict[str, list[dict]] = {n: [] for n in names}
                for _ in range(times):
                    for s in servers:
                        r = load(s, op, conns, seconds)
                        report.raw(server=s.name, **r)
                        runs[s.name].append(r)
                seen[op, conns] = runs
                print(f"{op:6}{conns:6}  " + "  ".join(
                    " ".join(f"{median(runs[n], i):8.{0 if i == 'rate' else 1}f}" for n in names)
                    for i in ("rate", "p99_us", "cpu_us")), flush=True)
    sum_up(report, seen)


def least(seen: dict, conns, field: str, peer: str) -> tuple[float, str, dict, float]:
    """The smallest ratio of those at so many connections, what it was, the figures, and
    the ratio of the echo server to the same peer."""
    def of(key: tuple) -> float:
        return ratio(seen[key], field, "muster", peer)

    key = min((k for k in seen if k[1] in conns), key=of)
    figures = {n: median(r, field) for n, r in seen[key].items()}
    return (of(key), f"{key[0].upper()}, {key[1]}", figures,
            ratio(seen[key], field, "echo", peer))


def sum_up(report: Report, seen: dict) -> None:
    for conns in CONNS:
        r, what, f, limit = least(seen, (conns,), "rate", "torch")
        report.add(f"rate, {what} connection{'s' if conns > 1 else ''}", f"{f['muster']:,.0f}/s",
                   f"torch {f['torch']:,.0f}/s", r, goal=1.2, limit=limit)
    for conns in CONNS:
        r, what, f, limit = least(seen, (conns,), "p99_us", "torch")
        report.add(f"p99, {what}", f"{f['muster']:,.0f} us", f"torch {f['torch']:,.0f} us", r,
                   goal=1.0, limit=limit)
    for field, unit, words in (("rate", "/s", "rate"), ("p99_us", " us", "p99")):
        for peer, goal in (("redis", 1.0), ("echo", 0.85 if field == "rate" else 1.0)):
            r, what, f, _ = least(seen, CONNS, field, peer)
            report.add(f"{words} beside {'Redis' if peer == 'redis' else 'the bare echo'}, {what}",
                       f"{f['muster']:,.0f}{unit}", f"{peer} {f[peer]:,.0f}{unit}", r, goal=goal)
    for peer in ("torch", "redis"):
        r, what, f, _ = least(seen, CONNS, "cpu_us", peer)
        report.add(f"server CPU per operation, {what}", f"{f['muster']:.1f} us",
                   f"{peer} {f[peer]:.1f} us", r, goal=1.0)


def crowds(report: Report, dns: Dns, times: int, clients: int) -> None:
    names = ("muster", "torch", "bare")
    took: dict[str, dict[str, list[dict]]] = {m: {n: [] for n in names} for m in ("join", "wake")}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(start(n, dns)) for n in names]
        for _ in range(times):
            for mode in took:
                for s in servers:
                    r = crowd(s, mode, clients)
                    report.raw(server=s.name, **r)
                    took[mode][s.name].append(r)
                    time.sleep(0.1)  # The server closes what the crowd has left behind.
    for mode, words, goal in (("join", "connect, VALIDATE, PING, ADD, WAIT for the last", 3.0),
                              ("wake", "one SET to the last wake-up", 2.0)):
        for field, what in (("seconds", words), ("server_cpu_s", "  server CPU of that")):
            ours, theirs = (median(took[mode][n], field) * 1e3 for n in ("muster", "torch"))
            timed = field == "seconds"
            report.add(f"{clients} clients: {what}" if timed else what, f"{ours:.1f} ms",
                       f"torch {theirs:.1f} ms", ratio(took[mode], field, "muster", "torch"),
                       goal=goal if timed else None,
                       limit=ratio(took[mode], field, "bare", "torch"))


def names(report: Report, dns: Dns, clients: int) -> None:
    """From the start of the server to the last client: torch asks for names in between."""
    if not dns.root:
        print("name servers near and silent: only root can set them up, left out")
        return
    ours = {}
    for kind, words in (("files", "no name server"), ("near", "a name server 1 ms away"),
                        ("silent", "a name server that never answers")):
        took, joined = {}, {}
        for name, argv in (("muster", peers.OURS_ARGV), ("torch", peers.TORCH_ARGV)):
            began = time.monotonic()
            with Server(name, dns.wrap(kind, argv)) as s:
                up = time.monotonic() - began
                r = crowd(s, "join", clients)
            took[name], joined[name] = up + r["seconds"], r["seconds"] * 1e3
            report.raw(server=name, dns=kind, up_s=up, **r)
        ours[kind] = took["muster"]
        if kind == "near":
            report.add(f"the same with {words}", f"{joined['muster']:.1f} ms",
                       f"torch {joined['torch']:.1f} ms", joined["torch"] / joined["muster"],
                       goal=3.0)
        report.add(f"  from the start of the server, {words}", f"{took['muster'] * 1e3:.0f} ms",
                   f"torch {took['torch'] * 1e3:.0f} ms", took["torch"] / took["muster"])
    report.add("  the last beside no name server: unchanged", f"{ours['silent'] * 1e3:.0f} ms",
               f"muster {ours['files'] * 1e3:.0f} ms", ours["files"] / ours["silent"])


def memory(report: Report, dns: Dns, conns: int, keys: int) -> None:
    idle, growth, total = {}, {}, {}
    for name in ("muster", "torch"):
        with start(name, dns) as s:
            bench("crowd", "fill", "--port", str(s.port), "--count", "1")
            before = s.memory()
            p = peers.idle_crowd(s, conns)
            idle[name] = (s.memory() - before) / conns
            p.stdin.close()
            p.wait()
        with start(name, dns) as s:
            before = s.memory()
            bench("crowd", "fill", "--port", str(s.port), "--count", str(keys), "--size", "64")
            total[name] = s.memory()
            growth[name] = (total[name] - before) / keys
        report.raw(bench="memory", server=name, idle_bytes=idle[name], key_bytes=growth[name],
                   total_with_keys=total[name])
    report.add("memory per idle connection", f"{idle['muster']:.0f} B",
               f"torch {idle['torch']:.0f} B", idle["torch"] / idle["muster"], goal=3.0)
    report.add(f"memory with {keys:,} keys of 64 bytes", f"{total['muster'] / 1e6:.1f} MB",
               f"torch {total['torch'] / 1e6:.1f} MB", total["torch"] / total["muster"], goal=3.0)
    payload = 12 + 64  # name and value, which no store can do without
    report.add("  growth for each of them (76 B are name and value)", f"{growth['muster']:.0f} B",
               f"torch {growth['torch']:.0f} B", growth["torch"] / growth["muster"],
               limit=growth["torch"] / payload)


def starts(report: Report, times: int) -> None:
    ours = [bench("crowd", "start", "--", *peers.OURS_ARGV) for _ in range(times * 3)]
    theirs = [bench("crowd", "start", "--", *peers.TORCH_ARGV) for _ in range(times)]
    a, b = median(ours, "seconds"), median(theirs, "seconds")
    report.raw(bench="start", muster=a, torch=b)
    report.add("start to first answer", f"{a * 1e3:.1f} ms", f"torch in Python {b * 1e3:.0f} ms",
               b / a, goal=200)


def old_and_new(commit: str, times: int, seconds: float, ops: list[str]) -> None:
    rows = []
    programs = build(commit), build("")
    with contextlib.ExitStack() as stack:
        servers = {p: stack.enter_context(Server("muster", [str(p), *peers.OURS_ARGV[1:]])) for p in programs}
        for op in ops:
            for conns in CONNS:
                got = in_turns(*programs, times, lambda p: load(servers[p], op, conns, seconds))
                rows.append((f"{op.upper()}, {conns} connection{'s' if conns > 1 else ''}", "{:,.0f}/s", got["rate"]))
                rows.append(("  server CPU for each", "{:.2f} us", got["cpu_us"]))
    show_turns(commit, rows)


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--times", type=int)
    ap.add_argument("--seconds", type=float)
    ap.add_argument("--ops", default="add,get,check")
    ap.add_argument("--realtime", action="store_true", help=peers.realtime.__doc__)
    ap.add_argument("--old", metavar="COMMIT")
    ap.add_argument("--rows", default="load,crowd,dns,memory,start")
    a = ap.parse_args()
    times = a.times or (1 if a.quick else 9)
    seconds = a.seconds or (0.05 if a.quick else 0.15)
    rows = a.rows.split(",")
    if a.realtime:
        peers.realtime()
    if a.old:
        old_and_new(a.old, times, seconds, a.ops.split(","))
        return 0
    report, dns = Report(), Dns()
    if "load" in rows:
        loads(report, dns, times, seconds, a.ops.split(","))
    if "crowd" in rows:
        crowds(report, dns, times, 4096)
    if "dns" in rows:
        names(report, dns, 4096)
    if "memory" in rows:
        memory(report, dns, 5000, 100000)
    if "start" in rows:
        starts(report, min(times, 3))
    dns.close()
    report.table()
    return 0


sys.exit(main())
