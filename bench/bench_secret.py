#!/usr/bin/env python3
"""What a job's secret and encryption cost: `bench/bench_secret.py [--nodes 10000] [--runs 5]`.

joins   so many nodes join one run, on one machine, without a secret and with one, by turns;
        wall time, and the host's own CPU time. Root does so in a network namespace with a long
        backlog: where net.core.somaxconn is 4096, most of 10,000 come too early, and what is
        measured is the second or two after which the kernel tries again.
store   GET requests of a worker on the second of two nodes, through its agent's store: without
        a secret, with one, and with --encrypt (through the relay), by turns; with 1, 8 and 64
        connections that wait for each answer. Client, relay and server share the processors of
        one machine here.

Medians, the best of the runs and ratios; the promises are joins within 1.3 times, encrypted
requests at least half. About two minutes on two processors.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/interop"))
from ports import free_port  # noqa: E402

BUILD = ROOT / os.environ.get("MUSTER_BUILD", "build")
TOKEN = "a-token-that-nobody-else-has-0123456789"


def without() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "MUSTER_TOKEN"}


ROOMY = ["unshare", "-n", "sh", "-c", "ip link set lo up && echo 65535 | tee /proc/sys/net/core/somaxconn "
         ">/proc/sys/net/ipv4/tcp_max_syn_backlog && exec \"$@\"", "sh"] if os.geteuid() == 0 else []


def join(nodes: int, secret: bool) -> dict:
    env = dict(without(), MUSTER_TOKEN=TOKEN) if secret else without()
    out = subprocess.run([*ROOMY, BUILD / "muster-bench", "rdzv", "--nodes", str(nodes)], env=env, capture_output=True,
                         text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])


def load(connections: int, secret: bool, encrypt: bool) -> float:
    """Requests a second of a worker on the node that does not serve the store."""
    with tempfile.TemporaryDirectory() as there:
        script = Path(there, "worker")
        script.write_text(
            "#!/bin/sh\n"
            f"if [ $RANK = 0 ]; then while [ ! -e {there}/done ]; do sleep 0.05; done; exit 0; fi\n"
            f"{BUILD}/muster-bench load --op get --sleep --seconds 1 --count {connections} --port $MASTER_PORT > {there}/out\n"
            f"touch {there}/done\n")
        script.chmod(0o755)
        argv = [str(BUILD / "muster"), "run", "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                "--rdzv-id=bench", "--local-addr=127.0.0.1", *(["--encrypt"] if encrypt else []), "--no-python"]
        env = dict(without(), OMP_NUM_THREADS="1", **({"MUSTER_TOKEN": TOKEN} if secret else {}))
        nodes = [subprocess.Popen([*argv, str(script)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                 for _ in range(2)]
        for n in nodes:
            if n.wait(120):
                raise SystemExit("bench_secret: a node failed")
        return json.loads(Path(there, "out").read_text().splitlines()[-1])["rate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=["joins", "store"])
    o = parser.parse_args()
    if o.only != "store":
        plain, secret = [], []
        for _ in range(o.runs):
            plain.append(join(o.nodes, False))
            secret.append(join(o.nodes, True))
        for what, name in (("seconds", "wall"), ("host_cpu_seconds", "host's CPU")):
            a, b = [r[what] for r in plain], [r[what] for r in secret]
            print(f"{o.nodes} joins, {name}: {statistics.median(a):.3f} s, with a secret {statistics.median(b):.3f} s: "
                  f"{statistics.median(b) / statistics.median(a):.2f}x (best {min(a):.3f}, {min(b):.3f}: {min(b) / min(a):.2f}x)",
                  flush=True)
        ms = 1000 * (statistics.median(r["host_cpu_seconds"] for r in secret) -
                     statistics.median(r["host_cpu_seconds"] for r in plain)) / o.nodes
        print(f"a proof costs the host {ms:.4f} ms of CPU", flush=True)
    if o.only != "joins":
        for connections in (1, 8, 64):
            rates: dict[str, list[float]] = {"none": [], "secret": [], "encrypt": []}
            for _ in range(o.runs):
                for kind, got in rates.items():
                    got.append(load(connections, kind != "none", kind == "encrypt"))
            none, with_secret, encrypted = (statistics.median(r) for r in rates.values())
            print(f"{connections} connections: {none:.0f} requests/s, with a secret {with_secret:.0f} ({with_secret / none:.2f}x), "
                  f"encrypted {encrypted:.0f} ({encrypted / none:.2f}x; best {max(rates['encrypt']) / max(rates['none']):.2f}x)",
                  flush=True)


if __name__ == "__main__":
    main()
