"""A node of a release that speaks version 1 (docs/PROTOCOL.md), in both roles. It is built once, from git."""
import os
import subprocess

import pytest
from run_job import ROOT, Job, free_port

BEFORE = "af65c4a"
OLD = ROOT / "build" / f"before-{BEFORE}"


@pytest.fixture(scope="module")
def old():
    """Its muster; skipped where there is no history to build it from."""
    program = OLD / "build" / "muster"
    if not program.exists():
        if subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{BEFORE}^{{commit}}"], capture_output=True).returncode:
            pytest.skip("no history here")
        OLD.mkdir(parents=True, exist_ok=True)
        tree = subprocess.Popen(["git", "-C", ROOT, "archive", BEFORE], stdout=subprocess.PIPE)
        subprocess.run(["tar", "x", "-C", OLD], stdin=tree.stdout, check=True)
        subprocess.run(["meson", "setup", OLD / "build", OLD, "-Dtests=false"], check=True, capture_output=True)
        subprocess.run(["nice", "ninja", "-C", OLD / "build", "muster"], check=True, capture_output=True)
    return program


class OldJob(Job):
    def __init__(self, program, where, name, *words):
        import run_job
        new, run_job.MUSTER = run_job.MUSTER, program
        try:
            super().__init__(where, name, *words)
        finally:
            run_job.MUSTER = new


def words(port, host):
    return ("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=versions", f"--rdzv-endpoint=127.0.0.1:{port}",
            "--local-addr=127.0.0.1", f"--rdzv-conf=is_host={int(host)}", "--no-python", "sh", "-c")


@pytest.mark.parametrize("old_hosts", [True, False])
def test_the_versions_are_named(tmp_path, old, old_hosts):
    """Whoever comes is told, and says so; the host waits for nodes that speak its version."""
    port = free_port()
    with OldJob(old, tmp_path, "old", *words(port, old_hosts), "true") as a, \
            Job(tmp_path, "new", *words(port, not old_hosts), "true") as b:
        guest = b if old_hosts else a
        assert guest.wait(60) != 0
        assert "version 1" in guest.text() and "version 3" in guest.text(), guest.text()
        assert "same release" in guest.text()
