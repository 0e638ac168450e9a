"""`srun muster run`, on a real Slurm with three nodes."""
from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from rig import MUSTER, ROOT


@pytest.fixture(scope="module")
def slurm():
    with Cluster(3) as cluster:
        yield cluster


def test_several_tasks_on_a_node_are_refused(slurm) -> None:
    srun = slurm.srun(["-N1", "-n2", MUSTER, "run", "--no-python", "true"])
    assert srun.wait(60) != 0
    assert "srun started 2 tasks on 1 nodes" in srun.output()
    assert "--ntasks-per-node=1" in srun.output()


def test_another_number_of_nodes_is_refused(slurm) -> None:
    srun = slurm.srun(["-N3", "--ntasks-per-node=1", MUSTER, "run", "--nnodes=2",
                       "--no-python", "true"])
    assert srun.wait(60) != 0
    assert "--nnodes=2, but this Slurm job step has 3 nodes" in srun.output()


SHOW = 'echo "$(hostname) group $GROUP_RANK rank $RANK of $WORLD_SIZE id $TORCHELASTIC_RUN_ID"'


def test_the_nodes_of_a_step_find_each_other(slurm) -> None:
    """No address, no id, no number of nodes; ranks in the order of the nodes."""
    srun = slurm.srun(["-N3", "--ntasks-per-node=1", MUSTER, "run", "--nproc-per-node=2",
                       "--no-python", "sh", "-c", SHOW.replace("$(", "$$(")],
                      OMP_NUM_THREADS="1")
    assert srun.wait(90) == 0, srun.output()
    lines = sorted(line for line in srun.output().splitlines() if " group " in line)
    job = lines[0].split()[-1]
    assert job.startswith("slurm-") and job.endswith(".0")
    assert lines == [f"node{n + 1} group {n} rank {2 * n + w} of 6 id {job}"
                     for n in range(3) for w in range(2)]


def test_munge_gives_a_step_its_secret(slurm) -> None:
    """Without a word from the user, where munge runs; where it does not, one line says that there is none."""
    argv = ["-N3", "--ntasks-per-node=1", MUSTER, "run", "--no-python", "sh", "-c", "echo rank $$RANK"]
    srun = slurm.srun(argv, OMP_NUM_THREADS="1", MUSTER_MUNGE_SOCKET=str(slurm.rig.dir / "munge.socket"))
    assert srun.wait(90) == 0, srun.output()
    assert sorted(re.findall(r"rank \d", srun.output())) == ["rank 0", "rank 1", "rank 2"], srun.output()
    assert "no secret" not in srun.output()
    srun = slurm.srun(argv, OMP_NUM_THREADS="1", MUSTER_MUNGE_SOCKET="/no/such/socket")
    assert srun.wait(90) == 0, srun.output()
    assert srun.output().count("this job has no secret") == 1


def test_the_line_of_the_readme(slurm, tmp_path: Path) -> None:
    """In a job with three nodes."""
    (line,) = re.findall(r"`(srun [^`]*)`", (ROOT / "README.md").read_text())
    script = tmp_path / "train.py"
    script.write_text("import os; os.write(1, f\"rank {os.environ['RANK']}\\n\".encode())")
    argv = shlex.split(line.replace("train.py", str(script)).replace(" muster ", f" {MUSTER} "))
    srun = slurm.rig[0].start(["salloc", "-N3", "-Q", *argv], SLURM_CONF=str(slurm.conf),
                              OMP_NUM_THREADS="1", PYTHON_EXEC=sys.executable)
    assert srun.wait(120) == 0, srun.output()
    ranks = re.findall(r"^rank (\d+)$", srun.output(), re.M)
    assert sorted(map(int, ranks)) == list(range(24)), srun.output()


def test_one_verdict_on_all_nodes(slurm, tmp_path: Path) -> None:
    """A rank on the second node is killed in a real gloo job: all three tell the same, and srun fails."""
    argv = ["-N3", "--ntasks-per-node=1", "-l", MUSTER, "run", f"--report={tmp_path}/report", str(ROOT / "tests/interop/verdict_worker.py")]
    srun = slurm.srun(argv, OMP_NUM_THREADS="1", HOW="kill", WHO="1", PYTHON_EXEC=str(ROOT / "build/venv/bin/python"))
    assert srun.wait(120) != 0
    said = re.findall(r"^(\d): muster: the job failed: (.*)", srun.output(), re.M)
    assert sorted(n for n, _ in said) == ["0", "1", "2"], srun.output()
    assert len({text for _, text in said}) == 1
    assert re.match(r"rank 1 on node2 \(local rank 0, pid \d+\): killed by SIGKILL; the kernel does not tell by whom", said[0][1]), said
    story = json.loads((tmp_path / "report").read_text())
    assert story["verdict"]["host"] == "node2" and len(story["nodes"]) == 3


def test_two_steps_at_once_do_not_meet(slurm) -> None:
    argv = ["-N3", "--ntasks-per-node=1", "--overlap", MUSTER, "run", "--no-python", "sh", "-c",
            SHOW.replace("$(", "$$(")]
    steps = [slurm.srun(argv) for _ in range(2)]
    ids = set()
    for step in steps:
        assert step.wait(90) == 0, step.output()
        found = {line.split()[-1] for line in step.output().splitlines() if " group " in line}
        assert len(found) == 1
        ids |= found
    assert len(ids) == 2


def test_a_range_waits_for_nobody_who_cannot_come(slurm, tmp_path: Path) -> None:
    """With a last call of ten minutes: the first round begins when all nodes of the step are there, the one after a
    failure when they are back, and the one after the loss of a node without it."""
    work = tmp_path / "work.sh"
    work.write_text(f"""echo "attempt $TORCHELASTIC_RESTART_COUNT rank $RANK of $WORLD_SIZE on $(hostname)"
[ "$WORLD_SIZE" = 2 ] && exit 0
[ "$TORCHELASTIC_RESTART_COUNT $RANK" = "0 1" ] && exit 1
exec sleep 1000
""")
    srun = slurm.srun(["-N3", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "-W0", MUSTER, "run", "--nnodes=1:8",
                       "--max-restarts=3", "--rdzv-conf=last_call_timeout=600,keep_alive_interval=1", "--no-python", "sh",
                       str(work)])
    srun.wait_for_match(r"attempt 1 rank \d of 3", 3)
    for pid, words in slurm.rig[2].processes().items():
        if words.startswith(MUSTER):
            os.kill(pid, signal.SIGKILL)
    srun.wait_for_match(r"rank \d of 2 on node[12]", 2)
    srun.wait(60)


def test_standalone_is_a_job_in_each_task(slurm) -> None:
    srun = slurm.srun(["-N2", "-n4", MUSTER, "run", "--standalone", "--no-python", "sh", "-c",
                       "echo world $WORLD_SIZE"])
    assert srun.wait(90) == 0, srun.output()
    assert srun.output().split("\n").count("world 1") == 4


def test_a_cancelled_job_ends_its_workers_in_good_order(slurm, tmp_path: Path) -> None:
    """scancel sends SIGTERM: the workers hear of it, and nothing is left behind."""
    work = tmp_path / "work.sh"
    work.write_text(f'trap "echo bye >{tmp_path}/bye.$RANK; exit 0" TERM\n'
                    "echo working\nwhile :; do sleep 0.1; done\n")
    srun = slurm.srun(["-N3", "--ntasks-per-node=1", MUSTER, "run", "--no-python", "sh",
                       str(work)])
    srun.wait_for_match("working", 3)
    job = slurm.run(["squeue", "-h", "-o", "%i"]).split()[0]
    slurm.run(["scancel", job])
    assert srun.wait(60) != 0
    srun.wait_until(lambda: len(list(tmp_path.glob("bye.*"))) == 3, 30)
    srun.wait_until(lambda: not any("work.sh" in c for h in slurm.rig.hosts
                                    for c in h.processes().values()), 30)


def test_who_is_missing_is_named(slurm, tmp_path: Path) -> None:
    """Slurm knows the names of all nodes of the step."""
    late = (f'[ "$(hostname)" != node3 ] || until [ -e {tmp_path}/go ]; do sleep 0.1; done; '
            f"exec {MUSTER} run --no-python true")
    srun = slurm.srun(["-N3", "--ntasks-per-node=1", "sh", "-c", late])
    srun.wait_for_match(r"2 of 3 nodes are here, missing: node3 \(until .*\); here: node[12], node[12]")
    (tmp_path / "go").touch()
    assert srun.wait(120) == 0, srun.output()


def test_the_signal_before_the_time_limit(slurm, tmp_path: Path) -> None:
    """--signal=TERM@50 with a limit of a minute: the workers hear of it and end in order."""
    work = tmp_path / "work.sh"
    work.write_text(f'trap "echo saved >{tmp_path}/saved.$RANK; exit 0" TERM\n'
                    "echo working\nwhile :; do sleep 0.1; done\n")
    srun = slurm.srun(["-N3", "--ntasks-per-node=1", "--time=1", "--signal=TERM@55", MUSTER,
                       "run", "--no-python", "sh", str(work)])
    srun.wait_for_match("working", 3)
    srun.wait(110)
    srun.wait_until(lambda: len(list(tmp_path.glob("saved.*"))) == 3, 30)
    srun.wait_until(lambda: not any("work.sh" in c for h in slurm.rig.hosts
                                    for c in h.processes().values()), 30)


def test_a_preempted_job_gets_its_grace(slurm, tmp_path: Path) -> None:
    """A job of a partition with a higher tier takes the nodes: Slurm sends SIGTERM, and
    SIGKILL only when the grace time is over. The workers save and end; the other runs."""
    work = tmp_path / "work.sh"
    work.write_text(f'trap "sleep 1; echo saved >{tmp_path}/saved.$RANK; exit 0" TERM\n'
                    "echo working\nwhile :; do sleep 0.1; done\n")
    low = slurm.srun(["-N3", "--exclusive", "--ntasks-per-node=1", MUSTER, "run",
                      "--no-python", "sh", str(work)])
    low.wait_for_match("working", 3)
    urgent = slurm.srun(["-p", "urgent", "-N3", "--exclusive", "--ntasks-per-node=1", MUSTER,
                         "run", "--no-python", "echo", "urgent"])
    assert low.wait(100) != 0
    assert len(list(tmp_path.glob("saved.*"))) == 3, low.output()
    assert urgent.wait(100) == 0, urgent.output()
    assert urgent.output().split().count("urgent") == 3
