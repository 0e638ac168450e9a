"""What runs in threads, watched by the thread sanitizer: the blocking API, which has a loop in
a thread of its own behind each object, and what is given to libuv's threads (names are
resolved there)."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parent.parent.parent / "build"
PROGRAMS = ["handler_api", "blocking_call", "rendezvous_api", "dynamic", "store_api", "store_client",
            "store_ends"]


@pytest.fixture(scope="module")
def built() -> None:
    subprocess.run(["ninja", "-C", BUILD, "tsan_tests"], check=True, capture_output=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_races(built: None, program: str) -> None:
    env = dict(os.environ, TSAN_OPTIONS="halt_on_error=1:exitcode=66:second_deadlock_stack=1")
    run = subprocess.run([BUILD / f"tests/unit/tsan_{program}"], env=env,
                         capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "test(s) run" in run.stderr + run.stdout
