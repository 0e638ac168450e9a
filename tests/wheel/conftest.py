"""The wheel, built once, and virtual environments that hold nothing else."""
from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: object, ok: bool = True, **kwargs) -> subprocess.CompletedProcess[str]:
    kwargs = {"text": True, "capture_output": True, "timeout": 240} | kwargs
    done = subprocess.run([str(a) for a in argv], **kwargs)
    if ok:
        assert done.returncode == 0, f"{argv}:\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def wheel() -> Path:
    """build/dist/*.whl of these sources. Several test processes share one build."""
    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build/wheel.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read() != run_id:
            run("make", "-s", "wheel", cwd=ROOT)
            lock.truncate(0)
            lock.write(run_id)
            lock.flush()
    (found,) = (ROOT / "build/dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory) -> Path:
    """An empty virtual environment with the wheel, and nothing else, in it."""
    where = tmp_path_factory.mktemp("venv") / "v"
    run("python3", "-m", "venv", where)
    run(where / "bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel)
    return where
