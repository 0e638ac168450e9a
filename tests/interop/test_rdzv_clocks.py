"""Wall clocks that jump while a round forms and while it runs, in groups with torch's handler.

torch's nodes compare wall clocks and drop whoever seems to be silent; some of that no peer can
prevent. What must hold all the same: whoever is told the same round is told the same world."""
from __future__ import annotations

import datetime
import os
import subprocess
import time

import pytest

from patience import clock

from rdzv_nodes import PATIENCE, ROOT, Node, TorchNode, free_port

pytest.importorskip("torch")
BEATS = {"keep_alive_interval": "1", "keep_alive_max_attempt": "8", "last_call_timeout": "2"}
CONF = ",".join(f"{k}={v}" for k, v in BEATS.items())


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Shifts the wall clock of whoever preloads it."""
    made = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, ROOT / "tests/hosts/clock.c", "-ldl"], check=True)
    return str(made)


class OurClock:
    def __init__(self, library, path):
        self.path = path
        self.env = {"LD_PRELOAD": library, "CLOCK_AHEAD": f"@{path}"}
        self.set(0)

    def set(self, seconds):
        new = self.path.with_suffix(".new")
        new.write_text(str(seconds))
        os.replace(new, self.path)


class TorchClock:
    """The clock that torch's handler in this process looks at."""

    def __init__(self, monkeypatch):
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous

        class Shifted(datetime.datetime):
            ahead = 0

            @classmethod
            def now(cls, tz=None):
                return datetime.datetime.now(tz) + datetime.timedelta(seconds=cls.ahead)

        self.shifted = Shifted
        monkeypatch.setattr(dynamic_rendezvous, "datetime", Shifted)

    def set(self, seconds):
        self.shifted.ahead = seconds


class Told:
    """Everything that anybody was told; no two may contradict each other."""

    def __init__(self):
        self.rounds = {}

    def add(self, name, said):
        round_, rank, world = said[:3]
        others = self.rounds.setdefault(round_, {})
        others[name] = (rank, world)
        assert {w for _, w in others.values()} == {world}, self.rounds
        assert sorted(r for r, _ in others.values()) == sorted({r for r, _ in others.values()}), self.rounds
        return said

    def together(self, members, by=PATIENCE):
        """All answers of a join, until all have the same round. torch's handler whose own clock
        jumps may miscount its own world as it reads a round that is complete: that much is torch's,
        and shows, as two are the least that a round takes; then all begin again."""
        end = clock() + by
        waiting = dict(members)
        said = {}
        while waiting:
            assert clock() < end, (said, self.rounds)
            for name, member in waiting.items():
                said[name] = member.joined()
            if said["t"][2] < 2:
                assert any("clock" in line for line in members["a"].log), members["a"].log
                waiting = dict(members)
            else:
                for name, one in said.items():
                    self.add(name, one)
                newest = max(one[0] for one in said.values())
                waiting = {name: m for name, m in members.items() if said[name][0] != newest}
            for member in waiting.values():
                start(member)
        return said


def start(member):
    member.tell_next() if isinstance(member, TorchNode) else member.tell("next")


def stop(member):
    """Ends one whatever it is doing; most of these are dropped in mid-run."""
    if isinstance(member, TorchNode):
        member.end()
    else:
        member.process.kill()
        member.process.wait()


@pytest.mark.parametrize("by", [20, -20])
@pytest.mark.parametrize("who", ["ours", "torch"])
@pytest.mark.parametrize("host", ["ours", "torch"])
def test_a_clock_that_jumps(library, tmp_path, monkeypatch, host, who, by):
    at = f"127.0.0.1:{free_port()}"
    ours, torchs = OurClock(library, tmp_path / "ahead"), TorchClock(monkeypatch)
    clock = ours if who == "ours" else torchs
    told, members = Told(), {}
    try:
        # Both clocks agree; two of at most three come, and the last call begins.
        if host == "torch":
            members["t"] = TorchNode(at, nodes=(2, 3), addr="127.0.0.1", is_host=True, **BEATS)
            members["a"] = Node(at, nodes=(2, 3), addr="z", conf=CONF + ",is_host=0", env=ours.env)
            start(members["t"])
            start(members["a"])
        else:
            members["a"] = Node(at, nodes=(2, 3), addr="127.0.0.1", conf=CONF, env=ours.env)
            start(members["a"])
            members["a"].heard("hosts the TCP store")
            members["t"] = TorchNode(at, nodes=(2, 3), addr="z", **BEATS)
            start(members["t"])
        time.sleep(0.5)
        clock.set(by)  # in the middle of it
        told.together(members)

        # The round runs; the clock jumps on; then all meet again, as agents would after a loss.
        time.sleep(0.6)
        clock.set(2 * by)
        time.sleep(2)
        if who == "ours":
            assert not [n for n in members["a"].news if "EVICTED" in n], members["a"].news
            assert members["t"].handler.num_nodes_waiting() == 0
        for member in members.values():
            start(member)
        worlds = told.together(members)
        assert {s[2] for s in worlds.values()} == {2}, told.rounds
    finally:
        for member in reversed(members.values()):
            stop(member)
