"""The clock of limits: a crowded machine makes them longer, a hang still ends them."""
from __future__ import annotations

import os
import subprocess
import time

import patience
import pytest

patience.install()  # as tests/conftest.py does; twice is harmless


@pytest.fixture
def crowd():
    """More that wants to run than this machine has cores for, by ten times; with the last place in the
    queue, so that tests beside this one hardly notice."""
    count = 10 * len(os.sched_getaffinity(0))
    busy = [subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"]) for _ in range(count)]
    time.sleep(1.1)  # until the clock has seen them
    yield
    for p in busy:
        p.kill()
    for p in busy:
        p.wait()


def test_a_crowded_second_counts_for_little(crowd) -> None:
    began, wall = patience.clock(), time.monotonic()
    time.sleep(1)
    assert 0 < patience.clock() - began < 0.5 * (time.monotonic() - wall)


def test_who_gets_no_core_is_waited_for(crowd) -> None:
    asked = subprocess.run(["sh", "-c", "sleep 1.5; cat"], input="said", text=True, capture_output=True, timeout=0.7)
    assert asked.stdout == "said"
    assert subprocess.Popen(["sleep", "1"]).wait(0.7) == 0


def test_a_hang_ends() -> None:
    with subprocess.Popen(["sleep", "1000"]) as p:
        with pytest.raises(subprocess.TimeoutExpired, match="timed out after 0.2 seconds"):
            p.wait(0.2)
        with pytest.raises(subprocess.TimeoutExpired):
            p.communicate(timeout=0.2)
        p.kill()
