"""Where jobs listen: the table in SECURITY.md, against `ss` in a network namespace."""
from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile

import pytest
from run_job import MUSTER, ROOT, environment

ROWS = [[cell.strip() for cell in line.strip("|\n ").split(" | ")]
        for line in (ROOT / "SECURITY.md").read_text().splitlines()
        if line.startswith("| `--") and line.count(" | ") == 2]
NETWORK = ("ip link set lo up && ip link add eth0 type veth peer name there && "
           "ip address add 10.9.0.1/24 dev eth0 && ip link set eth0 up && ip link set there up && ")
WORDS = {"loopback": {"127.0.0.1", "[::1]"}, "all": {"*", "[::]", "0.0.0.0"}}


# A machine whose name everybody resolves to the same address: what SECURITY.md says of others is no row of its table.
NAME = "printf '127.0.0.1 localhost box\\n::1 localhost\\n' >$HOSTS && mount --bind $HOSTS /etc/hosts && hostname box && "


def in_namespace(script: str, *, timeout=60, **env) -> subprocess.CompletedProcess:
    words = ["unshare", "-num"] if os.geteuid() == 0 else ["unshare", "-rnum"]
    with tempfile.NamedTemporaryFile() as hosts:
        return subprocess.run([*words, "sh", "-c", NETWORK + NAME + script], text=True, capture_output=True,
                              timeout=timeout, env=environment(HOSTS=hosts.name, **env))


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    if in_namespace("true").returncode:
        pytest.skip("no network namespaces here")


def test_the_table_is_there():
    assert len(ROWS) >= 10


@pytest.mark.parametrize("command, where, master", ROWS, ids=[r[0].strip("`") for r in ROWS])
def test_listens_where_the_table_says(command, where, master):
    flags = command.strip("`")
    if "1:2" in flags:  # alone in a group for two: no need to wait for the other for long
        flags = (re.sub(r"(--rdzv-conf=\S+)", r"\1,last_call_timeout=1", flags) if "--rdzv-conf" in flags
                 else flags + " --rdzv-conf=last_call_timeout=1")
    # NAT: the others' address leads here, which this machine does not know of.
    nat = "ip route add local 10.8.0.1 dev lo && " if "10.8.0.1" in flags else ""
    worker = "echo master=$MASTER_ADDR; ss -ltnH | awk '{print $4}'"
    job = in_namespace(f"{nat}exec {MUSTER} run {flags} --no-python sh -c {shlex.quote(worker)}")
    assert job.returncode == 0, job.stderr
    found = re.findall(r"master=(\S+)", job.stdout)
    assert master == "`*`" or found == [master.strip("`")], job.stdout
    hosts = {line.rsplit(":", 1)[0] for line in job.stdout.splitlines() if re.search(r":\d+$", line)}
    assert hosts and hosts <= WORDS.get(where, {where}), job.stdout
    said = "listens on every address of this machine" in job.stderr
    assert said == (where == "all" and "bind=all" not in flags), job.stderr
