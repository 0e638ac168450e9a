"""A host that is gone, and no worker fails because of it: the others tell who was lost, and when."""
from __future__ import annotations

import json
import re
import time
from pathlib import Path

from rig import MUSTER, Host, Process, Rig

CONF = "join_timeout=10,keep_alive_interval=1,keep_alive_max_attempt=3"


def node(host: Host, job: str, endpoint: str, tmp: Path) -> Process:
    return host.start([MUSTER, "run", "--nnodes=3", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-id={job}",
                       f"--rdzv-endpoint={endpoint}", f"--rdzv-conf={CONF}", f"--report={tmp}/{job}-{host.name}.json",
                       "--no-python", "sh", "-c", "echo up; exec sleep 100"])


def verdict(n: Process, head: str = "muster: the job failed: ") -> str:
    assert n.wait(60) == 1, n.output()
    text = n.output()
    at = text.rfind(head)
    assert at >= 0, text
    return text[at:]


def seconds(text: str) -> float:
    h, m, s = re.findall(r"it was last heard of at (\d\d):(\d\d):([\d.]+)", text)[0]
    return int(h) * 3600 + int(m) * 60 + float(s)


def test_a_pulled_cable_and_a_lost_coordinator(tmp_path: Path) -> None:
    """Host 3 is a member of one job and serves the store of another."""
    with Rig(3) as rig:
        member = [node(h, "member", "node1:29400", tmp_path) for h in rig.hosts]
        server = [node(h, "server", "node3:29400", tmp_path) for h in rig.hosts]
        for n in member + server:
            n.wait_for_match("up", 2)
        here = time.localtime()
        before = here.tm_hour * 3600 + here.tm_min * 60 + here.tm_sec
        rig[2].power_off()
        for n in member[:2]:
            text = verdict(n)
            assert re.match(r"muster: the job failed: node3 was lost \(no sign of life for \d+\.\d s\); ranks \d to \d were there\n", text), text
            assert re.search(r"4 other ranks on 2 nodes were stopped because of it; could not join the rendezvous 'member' within 10 s", text), text
            assert (before - seconds(text)) % 86400 < 10 or seconds(text) - before < 5
        for n in server[:2]:  # They know only that they hear nothing from it.
            text = verdict(n, "muster: this node was cut off: ")
            assert re.match(r"muster: this node was cut off: no sign of life for \d+\.\d s from node3, "
                            r"which hosted the rendezvous and ranks \d to \d\n", text), text
            assert (before - seconds(text)) % 86400 < 10 or seconds(text) - before < 5
        stories = [json.loads((tmp_path / f"{job}-node{i}.json").read_text()) for job in ("member", "server") for i in (1, 2)]
        for i, story in enumerate(stories):
            cause = "lost node" if i < 2 else "cut off"
            assert story["outcome"] == "failed" and story["verdict"]["cause"] == cause and story["verdict"]["host"] == "node3"
