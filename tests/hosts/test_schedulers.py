"""`muster run` without a flag about nodes, on two hosts, in environments such as schedulers make."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from rig import MUSTER, Rig

SHOW = ["--nproc-per-node=2", "--no-python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE on $(hostname) run $TORCHELASTIC_RUN_ID"]


def environments(name: str, rig: Rig, tmp: Path) -> list[dict[str, str]]:
    """Of each host."""
    names = [f"node{i + 1}" for i in range(len(rig.hosts))]
    if name == "pbs":
        (tmp / "nodes").write_text("".join(f"{n}\n{n}\n" for n in names))
        return [{"PBS_NODEFILE": str(tmp / "nodes"), "PBS_JOBID": "31.srv", "PBS_ENVIRONMENT": "PBS_BATCH",
                 "PBS_NODENUM": str(i), "PBS_TASKNUM": str(i + 2)} for i in range(2)]
    if name == "lsf":
        return [{"LSB_JOBID": "31", "LSB_HOSTS": " ".join(names), "LSB_MCPU_HOSTS": " ".join(f"{n} 1" for n in names),
                 "LSF_PM_TASKID": str(i + 1)} for i in range(2)]
    if name == "flux":  # Debian has none: this one prints what flux-hostlist(1) says
        (tmp / "flux").write_text(f"#!/bin/sh\ntest \"$*\" = 'hostlist --expand local' && echo {' '.join(names)}\n")
        (tmp / "flux").chmod(0o755)
        return [{"FLUX_JOB_ID": "f31", "FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "2", "FLUX_TASK_RANK": str(i),
                 "FLUX_TASK_LOCAL_ID": "0", "PATH": f"{tmp}:/usr/bin:/bin"} for i in range(2)]
    if name == "sky":
        return [{"SKYPILOT_NODE_IPS": "\n".join(h.ip for h in rig.hosts), "SKYPILOT_NUM_NODES": "2",
                 "SKYPILOT_NODE_RANK": str(i), "SKYPILOT_TASK_ID": "31"} for i in range(2)]
    return [{"AWS_BATCH_JOB_ID": f"31#{i}", "AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_NODE_INDEX": str(i),
             "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
             **({"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": rig[0].ip4} if i else {})} for i in range(2)]


@pytest.mark.parametrize("name", ["pbs", "lsf", "flux", "sky", "aws"])
def test_the_nodes_of_a_scheduler_are_one_group(name: str, tmp_path: Path) -> None:
    with Rig(2) as rig:
        nodes = [h.start([MUSTER, "run", *SHOW], OMP_NUM_THREADS="1", **env)
                 for h, env in zip(rig.hosts, environments(name, rig, tmp_path))]
        assert [n.wait(60) for n in nodes] == [0, 0], [n.output() for n in nodes]
        said = sorted(m for n in nodes for m in re.findall(r"^rank \d of 4 on node\d run .*31.*", n.output(), re.M))
        assert [s.split(" run ")[0] for s in said] == [f"rank {r} of 4 on node{r // 2 + 1}" for r in range(4)], said


def test_pods_of_an_indexed_job_find_the_first_by_its_name() -> None:
    with Rig(2) as rig:
        for i, host in enumerate(rig.hosts):  # as the kubelet writes it
            host.run(["hostname", f"train-{i}"])
            host.hosts_file({f"train-{k}.svc.default.svc.cluster.local train-{k}": h.ip for k, h in enumerate(rig.hosts)})
        nodes = [h.start([MUSTER, "run", "--nnodes=2", *SHOW], OMP_NUM_THREADS="1", JOB_COMPLETION_INDEX=str(i))
                 for i, h in enumerate(rig.hosts)]
        assert [n.wait(60) for n in nodes] == [0, 0], [n.output() for n in nodes]
        said = sorted(m for n in nodes for m in re.findall(r"^rank .*", n.output(), re.M))
        assert said == [f"rank {r} of 4 on train-{r // 2} run k8s-train" for r in range(4)]


def test_a_contradiction_is_refused_in_a_sentence() -> None:
    with Rig(1) as rig:
        done = rig[0].start([MUSTER, "run", *SHOW], SKYPILOT_NODE_IPS="a\nb", SKYPILOT_NUM_NODES="3", SKYPILOT_NODE_RANK="0")
        assert done.wait(30) == 1
        assert "SkyPilot: SKYPILOT_NUM_NODES is 3, but SKYPILOT_NODE_IPS has 2 addresses" in done.output()
