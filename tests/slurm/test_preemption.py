"""Slurm takes the nodes of a DDP job: all ranks hear of it, save, and the job goes on later without having lost a step."""
from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest
from cluster import Cluster
from rig import MUSTER, ROOT, clock

TIMES = int(os.environ.get("PREEMPTIONS", "1"))


@pytest.fixture(scope="module")
def slurm():
    with Cluster(2) as cluster:
        yield cluster


def snippet(where: Path, steps: int) -> str:
    """The script of the guide, with our paths."""
    text = (ROOT / "docs/guides/slurm.md").read_text()
    (script,) = re.findall(r"\n\n((?:    .*\n)*    srun muster run .*--exit-codes=cause train.py\n)", text)
    script = re.sub(r"^    ", "", script, flags=re.M)
    assert "--requeue" in script and "--notice=SIGTERM:50s" in script
    return (script.replace("muster run", f"{MUSTER} run").replace("--nproc-per-node=8", "--nproc-per-node=1")
            .replace("train.py", f"{ROOT}/tests/slurm/ddp_saves.py {where} {steps}")
            .replace("#SBATCH --requeue", f"#SBATCH --requeue\n#SBATCH --exclusive\n#SBATCH --output={where}/out"))


def until(what, slurm, timeout=180) -> None:
    by = clock() + timeout
    while not what():
        assert clock() < by, "\n".join(p.read_text()[-3000:] for p in slurm.rig.dir.glob("slurmctld.log"))
        time.sleep(0.05)


def lines(path: Path) -> list[int]:
    return [int(x) for x in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("turn", range(TIMES))
def test_preempted_and_queued_again(slurm, tmp_path: Path, turn: int) -> None:
    steps, done = 200, tmp_path / "steps"
    (tmp_path / "job.sh").write_text(snippet(tmp_path, steps))
    env = {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": str(ROOT / "build/venv/bin/python"), "PACKAGE": str(ROOT / "python/src")}
    first = slurm.rig[0]
    number = first.run(["sbatch", "--parsable", str(tmp_path / "job.sh")], SLURM_CONF=str(slurm.conf), **env).strip()

    def state() -> str:
        shown = slurm.run(["scontrol", "show", "job", number])
        return re.search(r"JobState=(\w+)", shown).group(1) + " " + re.search(r"Restarts=(\d+)", shown).group(1)

    until(lambda: len(lines(done)) >= 5, slurm)
    urgent = slurm.srun(["-p", "urgent", "-N2", "--exclusive", "--ntasks-per-node=1", "true"])
    assert urgent.wait(120) == 0, urgent.output()
    until(lambda: state().endswith(" 1"), slurm)
    out = (tmp_path / "out").read_text()
    assert re.search(r"node node\d is to go at .*SIGTERM from .*SIGUSR1 to 2 ranks on 2 nodes", out), out
    assert "exit code 75: try again" in out and (tmp_path / "checkpoint.pt").exists(), out
    before = lines(done)
    assert 5 <= len(before) < steps
    slurm.run(["scontrol", "update", f"JobId={number}", "StartTime=now"])
    until(lambda: state().startswith("COMPLETED"), slurm)
    assert lines(done) == list(range(1, steps + 1)), f"after {len(before)} steps: {lines(done)}"


def test_what_cannot_work_is_not_queued_again(slurm, tmp_path: Path) -> None:
    script = snippet(tmp_path, 1).replace("ddp_saves.py", "no_such.py")
    script = re.sub(r"/\S*no_such.py.*", str(tmp_path / "bad.py"), script)
    (tmp_path / "bad.py").write_text("import no_such_module\n")
    (tmp_path / "job.sh").write_text(script)
    number = slurm.rig[0].run(["sbatch", "--parsable", str(tmp_path / "job.sh")], SLURM_CONF=str(slurm.conf),
                              PYTHON_EXEC=sys.executable, OMP_NUM_THREADS="1").strip()
    shown = ""

    def over() -> bool:
        nonlocal shown
        shown = slurm.run(["scontrol", "show", "job", number])
        return "JobState=FAILED" in shown

    until(over, slurm)
    assert "ExitCode=93:0" in shown and "Restarts=0" in shown, shown
