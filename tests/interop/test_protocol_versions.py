"""Groups with the release before the job channel (docs/PROTOCOL.md), in both roles. It is built once, from git."""
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
@pytest.mark.parametrize("script,code", [("echo RANK $RANK of $WORLD_SIZE", 0), ("sleep 1; exit $((RANK == 1 ? 5 : 0))", 1)])
def test_group(tmp_path, old, old_hosts, script, code):
    port = free_port()
    with OldJob(old, tmp_path, "old", *words(port, old_hosts), script) as a, \
            Job(tmp_path, "new", *words(port, not old_hosts), script) as b:
        codes = a.wait(60), b.wait(60)
        text = a.text() + b.text()
    assert code in codes, text
    if code == 0:
        assert codes == (0, 0) and all(f"RANK {i} of 4" in text for i in range(4)), text
