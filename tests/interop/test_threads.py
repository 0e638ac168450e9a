"""The public store API from several threads, watched by the thread sanitizer."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent.parent / "build"


def test_store_api_has_no_races():
    subprocess.run(["ninja", "-C", BUILD, "tests/unit/tsan_store_api"], check=True,
                   capture_output=True)
    env = dict(os.environ, TSAN_OPTIONS="halt_on_error=1:exitcode=66:second_deadlock_stack=1")
    run = subprocess.run([BUILD / "tests/unit/tsan_store_api"], env=env,
                         capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "test(s) run" in run.stderr + run.stdout
