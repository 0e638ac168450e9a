"""The wheel, built once, and virtual environments that hold nothing else."""
from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest
from wheels import ROOT, run


@pytest.fixture(scope="session")
def wheel() -> Path:
    """build/dist/*.whl of these sources. Several test processes share one build; tests/run
    makes it before it starts them."""
    if "MUSTER_WHEEL_BUILT" in os.environ:
        return the_wheel()
    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build/wheel.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read() != run_id:
            run("make", "-s", "wheel", cwd=ROOT, timeout=None)
            lock.truncate(0)
            lock.write(run_id)
            lock.flush()
    return the_wheel()


def the_wheel() -> Path:
    (found,) = (ROOT / "build/dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory) -> Path:
    """An empty virtual environment with the wheel, and nothing else, in it."""
    where = tmp_path_factory.mktemp("venv") / "v"
    run("python3", "-m", "venv", "--without-pip", where)
    run(sys.executable, "-m", "pip", "--python", where / "bin/python", "install", "-q",
        "--no-index", "--disable-pip-version-check", wheel)
    return where


@pytest.fixture(scope="module")
def env(wheel: Path, tmp_path_factory) -> dict[str, str]:
    """torch's environment with the wheel laid over it, as pip --target does."""
    target = tmp_path_factory.mktemp("over") / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
        "--disable-pip-version-check", "--target", target, wheel)
    return dict(os.environ, PYTHONPATH=str(target))


@pytest.fixture(scope="session")
def arm_wheel() -> Path:
    if "MUSTER_WHEEL_BUILT" not in os.environ or not list((ROOT / "build/dist-aarch64").glob("*.whl")):
        done = run("packaging/wheel", "aarch64", cwd=ROOT, timeout=None, ok=False)  # else tests/run has
        if "apt could not fetch packages for arm64" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr
    (found,) = (ROOT / "build/dist-aarch64").glob("*.whl")
    return found
