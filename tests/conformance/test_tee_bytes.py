"""Teed output, byte for byte: workers that write anything."""
from __future__ import annotations

import random

import pytest

PIECES = [b"a", b"line", b"\n", b"\n", b"\r", b"\r\n", b"\xff", b"\x00", "é".encode(), "€".encode(),
          "😀".encode(), b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80",
          b"\x80", b"\x1c", b"\x0b", b"\x0c", b"\x85", "\u2028".encode(), b" ", b"\t", b"x" * 100, b"\x1b[31m"]


def blob(seed: int) -> bytes:
    rng = random.Random(seed)
    return b"".join(rng.choice(PIECES) for _ in range(400))[:4000]


@pytest.mark.parametrize("seed", range(12))
def test_random_bytes(bench, seed):
    """One write of less than a page, so that nobody sees half of it."""
    data = blob(seed)
    outs = []
    for side in ("torch", "muster"):
        octal = "".join(f"\\{b:03o}" for b in data)
        got = bench.run(f"printf '{octal}' >blob; torchrun --log-dir L -t 1 --no-python dd if=blob bs=8192 "
                        "status=none >out; cmp blob L/*/attempt_0/0/stdout.log && od -An -v -tx1 out | tr -d ' \\n'", side)
        outs.append(got.out)
    assert bytes.fromhex(outs[0]).count(b"[default0]:") > 10  # it is about lines
    assert outs[1] == outs[0]
