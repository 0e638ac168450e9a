#!/usr/bin/env python3
"""What the Python package costs before it does anything, beside torch.

Prints a table, and writes JSON lines to build/bench/python.jsonl. `--quick` measures less
often.
"""
from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from table import Table

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / "build/venv/bin/python")
QUICK = "--quick" in sys.argv
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "python/src"),
       "MUSTER_COMMAND": str(ROOT / "build/muster"),
       "MUSTER_LIBRARY": str(ROOT / "build/libmuster.so.0")}
LAUNCH = """
import muster
if __name__ == "__main__":
    muster.elastic_launch(muster.LaunchConfig(1, 1, 4, max_restarts=0), abs)(1)
"""
TORCH_LAUNCH = """
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
if __name__ == "__main__":
    elastic_launch(LaunchConfig(1, 1, 4, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
                                max_restarts=0), abs)(1)
"""
rows = []


def row(work: str, who: str, value: float) -> float:
    rows.append({"bench": "python", "work": work, "who": who, "value": round(value, 3),
                 "unit": "ms"})
    print(f"{work:44s} {who:12s} {value:12.2f} ms", flush=True)
    return value


def took(*argv: str) -> float:
    began = time.perf_counter()
    subprocess.run(argv, env=ENV, check=True, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def middle(times: int, *argv: str) -> float:
    return statistics.median(took(*argv) for _ in range(times))


def main() -> None:
    n = 5 if QUICK else 31
    took(PYTHON, "-c", "import muster, torch")  # once for the disk
    nothing = middle(n, PYTHON, "-c", "pass")
    row("python, start to end", "python", nothing)
    imports, launches = {}, {}
    for code, who, times in (("import muster", "muster", n),
                             ("import muster; muster.Store.hash().close()", "with library", n),
                             ("import torch", "torch", 2 if QUICK else 5)):
        imports[who] = row("import, on top of that", who, middle(times, PYTHON, "-c", code) - nothing)
    script = ROOT / "build/bench/launch.py"
    for code, who in ((LAUNCH, "muster"), (TORCH_LAUNCH, "torch")):
        script.write_text(code)
        launches[who] = row("a function on 4 workers", who, middle(2 if QUICK else 5, PYTHON, str(script)))
    script.unlink()
    with open(ROOT / "build/bench/python.jsonl", "w") as out:
        out.writelines(json.dumps(r) + "\n" for r in rows)
    table = Table()
    table.add("`import muster`, over Python itself", f"{imports['muster']:.0f} ms", f"`import torch` {imports['torch']:.0f} ms")
    table.add("`elastic_launch` of a function on 4 workers", f"{launches['muster']:.0f} ms",
              f"torch's {launches['torch']:.0f} ms ({launches['torch'] / launches['muster']:.1f}x)", "faster",
              launches["muster"] < launches["torch"])
    table.show()


main()
