"""A training job in miniature: four workers fit a line to points that each holds a part of.

Needs nothing but Python and muster's store. Each step every worker computes the gradient on
its own points, all of them add theirs up through the store, and rank 0 writes a checkpoint
from which a restarted group goes on. `make demo-torch` does the same with DDP.
"""
from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import muster

STEPS = int(os.environ.get("DEMO_STEPS", "40"))
RATE = 0.3


def say(line: str) -> None:
    """One write for one line: print() in an unbuffered interpreter makes two."""
    os.write(1, (line + "\n").encode())


def points(rank: int) -> list[tuple[float, float]]:
    rng = random.Random(rank)
    xs = [rng.uniform(-1, 1) for _ in range(500)]
    return [(x, 3 * x - 2 + rng.gauss(0, 0.1)) for x in xs]


def gradient(a: float, b: float, mine: list[tuple[float, float]]) -> list[float]:
    errors = [(a * x + b - y, x) for x, y in mine]
    n = len(errors)
    return [2 * sum(e * x for e, x in errors) / n, 2 * sum(e for e, _ in errors) / n,
            sum(e * e for e, _ in errors) / n]


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    checkpoint = Path(sys.argv[1])
    store = muster.Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    mine = points(rank)

    # What rank 0 found on disk is where everybody starts.
    if rank == 0:
        text = checkpoint.read_text() if checkpoint.exists() else '{"step": 0, "a": 0, "b": 0}'
        store.set("start", text)
    state = json.loads(store.get("start"))
    say(f"rank {rank} of {world} pid {os.getpid()} from step {state['step']}")
    a, b = state["a"], state["b"]
    for step in range(state["step"] + 1, STEPS + 1):
        store.set(f"{step}/{rank}", json.dumps(gradient(a, b, mine)))
        parts = [json.loads(v) for v in store.multi_get([f"{step}/{r}" for r in range(world)])]
        da, db, loss = (sum(column) / world for column in zip(*parts))
        a, b = a - RATE * da, b - RATE * db
        time.sleep(0.1)  # a real step takes longer than this one
        if rank == 0:
            part = checkpoint.with_suffix(".part")
            part.write_text(json.dumps({"step": step, "a": a, "b": b}))
            part.rename(checkpoint)  # whole or not at all
            say(f"step {step}/{STEPS} loss {loss:.4f}")
    if rank == 0:
        say(f"fitted y = {a:.2f} x + {b:.2f}")


main()
