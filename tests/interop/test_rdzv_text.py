"""Endpoints, configuration strings and option values, beside torch's own functions."""
from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

torch_utils = pytest.importorskip("torch.distributed.elastic.rendezvous.utils")
from torch.distributed.elastic.rendezvous.api import RendezvousParameters  # noqa: E402

PROGRAM = (Path(__file__).resolve().parents[2] / os.environ.get("MUSTER_BUILD", "build")
           / "tests/interop/interop_rdzv_text")

HOST_BITS = ["host", "a.b", "10.0.0.1", "::1", "[::1]", "[", "]", ":", "-", "_", " ", "\t",
             "%eth0", "ü", "日本", "\u2003", "\u00a0", "é.fr", "/", "http://", "1", "x" * 60]
PORT_BITS = ["", ":", ":0", ":1", ":29400", ":65535", ":65536", ":00080", ":000080", ":1a",
             ":-1", ":+1", ": 1", ":1 ", ":1:2"]
CONF_BITS = ["a", "b", "key", "=", "=", ",", " ", "1", "x y", "\t", "ü", "\u3000", "=="]
INT_BITS = ["0", "1", "42", "_", "-", "+", " ", ".", "e", "\n", "9" * 18, "007"]
BOOL_BITS = ["1", "0", "true", "True", "YES", "y", "n", "F", "no", "on", " ", "2", ""]


def ask(lines: list[str]) -> list[str]:
    out = subprocess.run([PROGRAM], input="\n".join(lines) + "\n", capture_output=True,
                         text=True, check=True).stdout.splitlines()
    assert len(out) == len(lines)
    return out


def hexed(text: str) -> str:
    return text.encode().hex() or "-"


def expected(fn, render) -> str:
    try:
        return render(fn())
    except ValueError as e:
        return "error " + str(e).encode().hex()


def compare(cases: list[str], request, fn, render) -> None:
    got = ask([request(c) for c in cases])
    for case, answer in zip(cases, got):
        want = expected(lambda: fn(case), render)
        assert answer.strip() == want.strip(), f"{case!r}"


def mixes(rng: random.Random, bits: list[str], count: int, most: int) -> list[str]:
    return ["".join(rng.choices(bits, k=rng.randrange(most + 1))) for _ in range(count)]


def test_endpoints():
    rng = random.Random(1)
    cases = [h + p for h in HOST_BITS for p in PORT_BITS]
    cases += [a + b for a, b in zip(mixes(rng, HOST_BITS, 3000, 3), rng.choices(PORT_BITS, k=3000))]
    compare(cases, lambda c: f"endpoint {hexed(c)} 29400",
            lambda c: torch_utils.parse_rendezvous_endpoint(c, 29400),
            lambda r: f"ok {r[0].encode().hex()} {r[1]}")


def test_configuration_strings():
    cases = mixes(random.Random(2), CONF_BITS, 4000, 9)
    compare(cases, lambda c: f"conf {hexed(c)}", torch_utils._parse_rendezvous_config,
            lambda r: " ".join(["ok"] + [f"{k.encode().hex()}={v.encode().hex()}" for k, v in r.items()]))


def value_of(case: str, kind: str):
    params = RendezvousParameters("c10d", "", "id", 1, 1, k=case)
    return params.get_as_int("k") if kind == "int" else params.get_as_bool("k")


def test_integers():
    cases = mixes(random.Random(3), INT_BITS, 3000, 4)
    cases = [c for c in cases if len(c) < 19]  # ours has 64 bits, Python's has any number
    compare(cases, lambda c: f"int {hexed(c)}", lambda c: value_of(c, "int"), lambda r: f"ok {r}")


def test_booleans():
    cases = mixes(random.Random(4), BOOL_BITS, 500, 2)
    compare(cases, lambda c: f"bool {hexed(c)}", lambda c: value_of(c, "bool"), lambda r: f"ok {int(r)}")
