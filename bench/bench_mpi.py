#!/usr/bin/env python3
"""`muster run --for=mpi` beside hydra's mpiexec, in turn: from the start of the launcher until the last rank has come out of
MPI_Init (MPICH), and until the last of 256 clients that speak PMI alone has its neighbour's key.

Prints a table with ratios; JSON lines go to build/bench/mpi.jsonl. `--quick` measures less often."""
from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import Table

ROOT = Path(__file__).resolve().parent.parent
MUSTER, HYDRA = str(ROOT / "build/muster"), shutil.which("mpiexec.hydra")
CLIENT = str(Path(__file__).with_name("pmi_client.c"))


def until_last(command: list[str], ranks: int) -> float:
    """Milliseconds from now to the latest time that a rank prints."""
    began = time.monotonic()
    done = subprocess.run(command, text=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    said = [float(line) for line in done.stdout.split()]
    if done.returncode or len(said) != ranks:
        sys.exit(f"{command}: exit code {done.returncode}, {len(said)} of {ranks} ranks\n{done.stderr}")
    return 1000 * (max(said) - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_known_args()[0].quick
    if not HYDRA or not shutil.which("mpicc.mpich"):
        sys.exit("bench_mpi: needs mpiexec.hydra (mpich) and mpicc.mpich (libmpich-dev)")
    table, rows = Table(), []
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(["mpicc.mpich", "-O2", "-DMPI", "-o", f"{tmp}/mpi", CLIENT], check=True)
        subprocess.run(["cc", "-O2", "-o", f"{tmp}/pmi", CLIENT], check=True)
        for program, ranks in [("mpi", 2), ("mpi", 4), ("mpi", 8), ("mpi", 16), ("pmi", 256)]:
            commands = {"muster": [MUSTER, "run", "--standalone", f"--nproc-per-node={ranks}", "--for=mpi", "--no-python", f"{tmp}/{program}"],
                        "hydra": [HYDRA, "-n", str(ranks), f"{tmp}/{program}"]}
            got: dict[str, list[float]] = {who: [] for who in commands}
            for _ in range(3 if quick else 15):
                for who, command in commands.items():
                    got[who].append(until_last(command, ranks))
            ours, theirs = (statistics.median(got[who]) for who in commands)
            work = f"{ranks} ranks, to the end of MPI_Init" if program == "mpi" else f"{ranks} clients of PMI alone"
            rows += [{"bench": "mpi", "work": work, "who": who, "value": round(statistics.median(values), 3), "unit": "ms"}
                     for who, values in got.items()]
            print(f"{work:40s} muster {ours:8.1f} ms, hydra {theirs:8.1f} ms, {theirs / ours:.2f}x", flush=True)
            table.add(work, f"{ours:.1f} ms", f"hydra {theirs:.1f} ms ({theirs / ours:.2f}x)", "not slower", ours <= theirs)
    table.show()
    out = ROOT / "build/bench/mpi.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))


main()
