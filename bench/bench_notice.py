#!/usr/bin/env python3
"""A notice at one node: how long until the last worker of the job has its signal.

20 nodes of 8 workers, each node in a network namespace of its own behind one bridge (which needs root; else all share this
machine's network, which the row says). The workers are processes of sh's size that write down when SIGUSR1 came; the clock
begins when the signal is sent to the agent. Prints each figure, and a table with the goal at the end; JSON lines go to
build/bench/notice.jsonl. `--quick` measures once.
"""
from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))

from run_job import Job  # noqa: E402

NODES, WORKERS, GOAL_MS = 20, 8, 100
WORKER = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static struct timespec at;
static void on_told(int sig) { (void)sig; clock_gettime(CLOCK_MONOTONIC, &at); }
int main(int argc, char **argv)
{
    sigset_t set, none;
    char path[4096];

    sigemptyset(&none);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGUSR1, on_told);
    snprintf(path, sizeof path, "%s/up.%s", argv[argc - 1], getenv("RANK"));
    close(open(path, O_CREAT | O_WRONLY, 0600));
    sigsuspend(&none);
    snprintf(path, sizeof path, "%s/told.%s", argv[argc - 1], getenv("RANK"));
    FILE *f = fopen(path, "w");
    fprintf(f, "%lld.%09ld", (long long)at.tv_sec, at.tv_nsec);
    return fclose(f);
}
"""


def sh(*words) -> None:
    subprocess.run(list(map(str, words)), check=True)


class Net:
    """A namespace for each node, on one bridge."""

    def __init__(self, count: int):
        self.apart = os.geteuid() == 0
        self.tag = f"mn{os.getpid() % 100000}"
        self.made: list[str] = []
        if not self.apart:
            return
        sh("ip", "link", "add", f"{self.tag}b", "type", "bridge")
        sh("ip", "link", "set", f"{self.tag}b", "up")
        for i in range(count):
            space = f"{self.tag}-{i}"
            sh("ip", "netns", "add", space)
            self.made.append(space)
            sh("ip", "link", "add", f"{self.tag}v{i}", "master", f"{self.tag}b", "type", "veth", "peer", "name", "eth0", "netns", space)
            sh("ip", "link", "set", f"{self.tag}v{i}", "up")
            for words in (("link", "set", "lo", "up"), ("link", "set", "eth0", "up"), ("addr", "add", f"{self.address(i)}/24", "dev", "eth0")):
                sh("ip", "-n", space, *words)

    def address(self, i: int) -> str:
        return f"10.213.7.{i + 1}" if self.apart else "127.0.0.1"

    def inside(self, i: int) -> list[str]:
        return ["ip", "netns", "exec", self.made[i]] if self.apart else []

    def close(self) -> None:
        for space in self.made:
            subprocess.run(["ip", "netns", "del", space], check=False)
        if self.apart:
            subprocess.run(["ip", "link", "del", f"{self.tag}b"], check=False)


def until(holds, patience=300) -> None:
    by = time.monotonic() + patience
    while not holds():
        if time.monotonic() > by:
            sys.exit("it did not happen in time")
        time.sleep(0.05)


def measure(net: Net, program: Path, where: Path, nodes: int) -> float:
    """Milliseconds from the signal at the last node to the last worker that was told."""
    jobs = []
    for path in where.glob("*.*"):
        path.unlink()
    try:
        for i in range(nodes):
            jobs.append(Job(where, f"node{i}", f"--nnodes={nodes}", f"--nproc-per-node={WORKERS}", "--rdzv-backend=c10d",
                            f"--rdzv-endpoint={net.address(0)}:29517", f"--rdzv-conf=is_host={int(i == 0)}", "--rdzv-id=notice",
                            f"--local-addr={net.address(i)}", "--notice=SIGTERM:60s", "--on-notice=SIGUSR1", "--exit-codes=cause",
                            "--no-python", program, where, before=net.inside(i)))
        until(lambda: len(list(where.glob("up.*"))) == nodes * WORKERS)
        time.sleep(1)  # until the agents are at rest
        began = time.clock_gettime(time.CLOCK_MONOTONIC)
        os.kill(jobs[-1].pid, signal.SIGTERM)
        codes = {job.wait() for job in jobs}
        told = [float(path.read_text()) for path in where.glob("told.*")]
        if codes != {75} or len(told) != nodes * WORKERS:
            sys.exit(f"exit codes {codes}, {len(told)} workers were told: {jobs[0].text()[-2000:]}")
        return (max(told) - began) * 1e3
    finally:
        for job in jobs:
            job.end()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true")
    options.add_argument("--nodes", type=int, default=NODES)
    args = options.parse_args()
    table, net = Table(), Net(args.nodes)
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "worker"
            subprocess.run(["cc", "-O1", "-x", "c", "-", "-o", program], input=WORKER, text=True, check=True)
            where = Path(folder) / "job"
            where.mkdir()
            took = []
            for _ in range(1 if args.quick else 10):
                took.append(measure(net, program, where, args.nodes))
                print(f"notice at one of {args.nodes} nodes, last of {args.nodes * WORKERS} workers told: {took[-1]:.1f} ms", flush=True)
    finally:
        net.close()
    work = f"notice at one of {args.nodes} nodes{'' if net.apart else ' (one network)'}, last of {args.nodes * WORKERS} workers told"
    out = ROOT / "build/bench/notice.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps({"bench": "notice", "work": work, "who": "muster", "value": round(t, 3), "unit": "ms"}) + "\n" for t in took))
    table.add(work, f"{statistics.median(took):.0f} ms, at most {max(took):.0f}", "", f"{GOAL_MS} ms", max(took) <= GOAL_MS)
    table.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
