"""A real Slurm on the hosts of the rig: slurmctld on the first, slurmd on each."""
from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))
from rig import Process, Rig, clock, start_munged  # noqa: E402

CONF = """
ClusterName=rig
SlurmctldHost=node1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
InactiveLimit=0
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={nodes} CPUs=4 RealMemory=500 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
RequeueExit=75
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


class Cluster:
    def __init__(self, count: int) -> None:
        self.rig = Rig(count)
        try:
            self._start(count)
        except BaseException:
            self.close()
            raise

    def _start(self, count: int) -> None:
        here = self.rig.dir
        (here / "state").mkdir()
        self.conf = here / "slurm.conf"
        self.conf.write_text(CONF.format(dir=here, nodes=f"node[1-{count}]"))
        first = self.rig[0]
        start_munged(first, here)
        first.start(["slurmctld", "-D", "-f", str(self.conf)])
        for host in self.rig.hosts:
            host.start(["slurmd", "-D", "-f", str(self.conf), "-N", host.name])
        self._until("every node to be idle", lambda: self._idle() == count)

    def _idle(self) -> int:
        try:
            out = self.rig[0].run(["sinfo", "-h", "-N", "-p", "main", "-o", "%T"], SLURM_CONF=str(self.conf))
        except RuntimeError:
            return 0
        return out.split().count("idle")

    def _until(self, what: str, done, timeout: float = 60) -> None:
        deadline = clock() + timeout
        while not done():
            if clock() > deadline:
                logs = "\n".join(p.read_text()[-2000:] for p in self.rig.dir.glob("*.log"))
                raise RuntimeError(f"waited {timeout} s for {what}\n{logs}")
            time.sleep(0.1)

    def srun(self, argv: Sequence[str], **env: str) -> Process:
        return self.rig[0].start(["srun", *argv], SLURM_CONF=str(self.conf), **env)

    def run(self, argv: Sequence[str]) -> str:
        return self.rig[0].run(argv, SLURM_CONF=str(self.conf))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.rig.close()
