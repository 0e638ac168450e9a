"""What --rdzv-serve costs a start: three nodes on c10d and on an etcd of their own, in turns.

usage: bench_serve.py [RUNS]      (10; half a minute)

From the start of the agents to the start of the last worker, on three addresses of loopback. Prints medians and the
difference, which is to be at most 1 s.
"""
from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "interop")]
from test_etcd_serve import HOSTS, free_pair  # noqa: E402

MUSTER = ROOT / os.environ.get("MUSTER_BUILD", "build") / "muster"


def start(serve: bool) -> float:
    port, tmp = free_pair(), Path(tempfile.mkdtemp())
    how = (["--rdzv-backend=etcd-v3", "--rdzv-serve", "--rdzv-endpoint=" + ",".join(f"{h}:{port}" for h in HOSTS)]
           if serve else ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOSTS[0]}:{port}"])
    began = time.time()
    nodes = [subprocess.Popen([MUSTER, "run", "--nnodes=3", "--nproc-per-node=1", "--rdzv-id=bench", *how,
                               f"--local-addr={h}", "--no-python", "sh", "-c", f"date +%s.%N > {tmp}/$RANK"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for h in HOSTS]
    assert [n.wait(120) for n in nodes] == [0, 0, 0]
    return max(float((tmp / str(i)).read_text()) for i in range(3)) - began


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    took: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(runs):
        for serve in took:
            took[serve].append(start(serve))
    c10d, etcd = (statistics.median(took[serve]) for serve in (False, True))
    print(f"{runs} starts of three nodes: c10d {c10d:.2f} s, --rdzv-serve {etcd:.2f} s (worst {max(took[True]):.2f} s): "
          f"{etcd - c10d:+.2f} s; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
