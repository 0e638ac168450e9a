"""The shared state and the decisions on it, beside torch's own classes.

Every case goes through one process of ours, a line each, and through torch's code with
its clocks set by hand; actions and resulting states must be equal.
"""
from __future__ import annotations

import os
import base64
import pickle
import random
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

dyn = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
from torch.distributed.elastic.rendezvous.api import RendezvousGracefulExitError  # noqa: E402

PROGRAM = (Path(__file__).resolve().parents[2] / os.environ.get("MUSTER_BUILD", "build")
           / "tests/interop/interop_rdzv_state")
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, timezone.utc)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MONO = 1000.0


def ask(lines: list[str]) -> list[str]:
    out = subprocess.run([PROGRAM], input="\n".join(lines) + "\n", capture_output=True,
                         text=True, check=True).stdout.splitlines()
    assert len(out) == len(lines)
    return out


def dump(state, protocol=None) -> str:
    return base64.b64encode(pickle.dumps(state, protocol)).decode()


def load(text: str):
    return pickle.loads(base64.b64decode(text))


def plain(state) -> dict:
    """Maps in their order, sets without one."""
    d = dict(vars(state))
    d["participants"] = list(d["participants"].items())
    d["last_heartbeats"] = list(d["last_heartbeats"].items())
    return d


def random_addr(rng: random.Random) -> str:
    return rng.choice(["a", "b.c", "node-%d" % rng.randrange(9999), "ü.example", "x" * 300, ""])


def random_state(rng: random.Random, nodes: int):
    s = dyn._RendezvousState()
    s.round = rng.choice([0, 1, 255, 256, 65536, 2**31, 2**40])
    s.complete = rng.random() < 0.5
    s.closed = rng.random() < 0.1
    if rng.random() < 0.5:
        s.deadline = NOW + timedelta(microseconds=rng.randrange(-10**8, 10**8))
    for i in range(nodes):
        pid = rng.choice([0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, 2**62])
        key = (f"{random_addr(rng)}{i if nodes > 10 else ''}", pid, rng.randrange(3))
        node = dyn._NodeDesc(*key)
        other = node if rng.random() < 0.7 else dyn._NodeDesc(*key)  # not shared by torch
        s.last_heartbeats[node] = NOW - timedelta(microseconds=rng.randrange(10**7, 2 * 10**7))
        kind = rng.randrange(3)
        if kind == 0:
            s.participants[other] = rng.randrange(nodes)
        else:
            (s.wait_list if kind == 1 else s.redundancy_list).add(other)
    return s


def test_states_go_round():
    rng = random.Random(1)
    sizes = [rng.choice([0, 1, 2, 3, 5, 17]) for _ in range(400)]
    sizes += [100, 999, 1000, 1001, 2000, 2300]
    states = [random_state(rng, n) for n in sizes]
    protocols = [rng.choice([4, 5]) for _ in states]
    got = ask([f"copy {dump(s, p)}" for s, p in zip(states, protocols)])
    for state, text in zip(states, got):
        assert plain(load(text)) == plain(state)


def test_what_torch_does_not_write_is_refused():
    texts = [base64.b64encode(b).decode() for b in (
        pickle.dumps({"round": 0}), pickle.dumps(dyn._NodeDesc("a", 1, 0)),
        pickle.dumps(dyn._RendezvousState(), 2), pickle.dumps(print), b"\x80\x04.")]
    naive = dyn._RendezvousState()
    naive.deadline = datetime(2024, 1, 1)
    more = dyn._RendezvousState()
    more.extra = 1
    texts += [dump(naive), dump(more), "Y2FuaW1hZGFt"]
    for text, answer in zip(texts, ask([f"copy {t}" for t in texts])):
        assert answer.startswith("error "), text


class Case:
    """A small state, seen by one node at one moment with some settings."""

    def __init__(self, rng: random.Random):
        self.min = rng.randrange(1, 4)
        self.max = rng.randrange(self.min, 5)
        self.last_call_ms = rng.choice([1000, 30000])
        self.interval, self.attempts = rng.choice([(5, 3), (1, 2)])
        self.me = dyn._NodeDesc("me", 7, 0)
        self.due_ms = 1000000 + rng.choice([-5001, -5000, -4999, -1, 0, 1, 60000])
        self.state = self.make_state(rng)

    def beat(self, rng: random.Random):
        dead = self.interval * self.attempts * 10**6
        edges = [0, 1, self.interval * 10**6, dead]
        age = rng.choice([rng.choice(edges) + rng.choice([-1, 0, 1]), rng.randrange(2 * dead)])
        return NOW - timedelta(microseconds=age)

    def make_state(self, rng: random.Random):
        s = dyn._RendezvousState()
        s.round = rng.randrange(3)
        s.complete = rng.random() < 0.5
        s.closed = rng.random() < 0.15
        if rng.random() < 0.6:
            s.deadline = NOW + timedelta(microseconds=rng.choice([-10**6, -1, 0, 1, 10**6]))
        nodes = [self.me] if rng.random() < 0.75 else []
        nodes += [dyn._NodeDesc(rng.choice("abxyz"), i, 0) for i in range(rng.randrange(6))]
        rng.shuffle(nodes)
        for i, n in enumerate(nodes):
            if rng.random() < 0.95:
                s.last_heartbeats[n] = self.beat(rng)
            kind = rng.choice("ppppwr")
            if kind == "p":
                s.participants[n] = i if s.complete else 0
            if kind == "w" or rng.random() < 0.05:
                s.wait_list.add(n)
            if kind == "r" or rng.random() < 0.03:
                s.redundancy_list.add(n)
        return s

    def settings(self):
        return dyn.RendezvousSettings(
            "run", self.min, self.max,
            dyn.RendezvousTimeout(last_call=timedelta(milliseconds=self.last_call_ms)),
            timedelta(seconds=self.interval), self.attempts)

    def line(self, what: str) -> str:
        wall = (NOW - EPOCH) // timedelta(microseconds=1)
        args = f"{self.min},{self.max},{self.interval},{self.attempts},{self.last_call_ms} {wall}"
        if what != "sanitize":
            args += f" me,7,0 {int(MONO * 1000)} {self.due_ms}"
        return f"{what} {dump(self.state)} {args}"


@pytest.fixture
def clocks(monkeypatch):
    monkeypatch.setattr(dyn, "datetime", SimpleNamespace(now=lambda tz: NOW))
    monkeypatch.setattr(dyn, "time", SimpleNamespace(monotonic=lambda: MONO))
    monkeypatch.setattr(dyn, "construct_and_record_rdzv_event", lambda **kw: None)
    monkeypatch.setattr(dyn, "get_method_name", lambda: "")  # walks the stack: slow


OPS = {"join": dyn._RendezvousJoinOp, "exit": dyn._RendezvousExitOp,
       "close": dyn._RendezvousCloseOp, "beat": dyn._RendezvousKeepAliveOp}
EFFECTS = {
    "KEEP_ALIVE": "_keep_alive", "ADD_TO_PARTICIPANTS": "_add_to_participants",
    "ADD_TO_WAIT_LIST": "_add_to_wait_list",
    "ADD_TO_REDUNDANCY_LIST": "_add_to_redundancy_list",
    "REMOVE_FROM_PARTICIPANTS": "_remove_from_participants",
    "REMOVE_FROM_WAIT_LIST": "_remove_from_wait_list",
    "REMOVE_FROM_REDUNDANCY_LIST": "_remove_from_redundancy_list",
    "MARK_RENDEZVOUS_COMPLETE": "_mark_rendezvous_complete",
    "MARK_RENDEZVOUS_CLOSED": "_mark_rendezvous_closed",
}


def torch_op(what: str, case: Case):
    """Action and state after it, by torch's operation and executor; None where torch
    itself fails (a node without a heartbeat that leaves)."""
    state, settings = load(dump(case.state)), case.settings()
    ctx = dyn._RendezvousContext(case.me, state, settings)
    try:
        action = OPS[what]()(ctx, case.due_ms / 1000).name
    except RendezvousGracefulExitError:
        action = "GRACEFUL_EXIT"
    executor = dyn._DistributedRendezvousOpExecutor(case.me, None, settings)
    executor._state = state
    if action in EFFECTS:
        try:
            getattr(executor, EFFECTS[action])()
        except KeyError:
            return None
    return action, plain(state)


def torch_sanitize(case: Case):
    holder = dyn._BackendRendezvousStateHolder(None, case.settings())
    holder._state = load(dump(case.state))
    holder._sanitize()
    return plain(holder._state)


def test_decisions_are_torchs(clocks):
    rng = random.Random(2)
    cases = [(rng.choice(["join", "join", "join", "exit", "close", "beat"]), Case(rng))
             for _ in range(9000)]
    seen = set()
    for (what, case), answer in zip(cases, ask([c.line(w) for w, c in cases])):
        want = torch_op(what, case)
        if want is None:
            continue
        action, text = answer.split()
        seen.add((what, action))
        assert (action, plain(load(text))) == want, f"{what} {vars(case.state)} {vars(case)}"
    # Every row of every operation was met.
    assert len({a for w, a in seen if w == "join"}) == 13
    assert len({a for w, a in seen if w == "exit"}) == 3
    assert len({a for w, a in seen if w == "close"}) == 3
    assert len({a for w, a in seen if w == "beat"}) == 3


def test_the_dead_are_torchs(clocks):
    rng = random.Random(3)
    cases = [Case(rng) for _ in range(4000)]
    changed = 0
    for case, text in zip(cases, ask([c.line("sanitize") for c in cases])):
        want = torch_sanitize(case)
        changed += want != plain(case.state)
        assert plain(load(text)) == want, f"{vars(case.state)}"
    assert changed > 1000
