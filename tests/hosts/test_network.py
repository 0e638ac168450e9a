"""The workers' network: the interface that gloo, TensorPipe and NCCL are told to use."""
from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from rig import MUSTER, PYTHON, Host, Process, Rig

DDP = str(Path(__file__).with_name("ddp.py"))
SHOW = ["--no-python", "sh", "-c",
        'echo "<$GLOO_SOCKET_IFNAME|$TP_SOCKET_IFNAME|$NCCL_SOCKET_IFNAME>"']


def run(host: Host, endpoint: str, *rest: str, nodes: int = 2, backend: str = "c10d",
        **env: str) -> Process:
    where = ([f"--master-addr={endpoint.split(':')[0]}", f"--master-port={endpoint.split(':')[1]}",
              f"--node-rank={host.index}"] if backend == "static" else
             [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job"])
    return host.start([MUSTER, "run", f"--nnodes={nodes}", *where, *rest],
                      OMP_NUM_THREADS="1", PYTHON_EXEC=PYTHON, LOGLEVEL="INFO", **env)


def shown(nodes: list[Process]) -> list[str]:
    assert [n.wait() for n in nodes] == [0] * len(nodes), "\n".join(n.output() for n in nodes)
    return [re.search("<(.*)>", n.output()).group(1) for n in nodes]


def second_network(rig: Rig) -> None:
    for host in rig.hosts:
        host.run(["ip", "link", "add", "fast0", "type", "bridge"])
        host.run(["ip", "addr", "add", f"10.88.0.{host.index + 1}/24", "dev", "fast0"])
        host.run(["ip", "link", "set", "fast0", "up"])


@pytest.mark.parametrize("how", ["local-addr", "connection", "debian", "static"])
def test_ddp_on_hosts_whose_names_nobody_knows(how: str) -> None:
    """Without an interface gloo falls back to loopback, where no other host reaches it. On a
    Debian the host's own name even leads to 127.0.1.1."""
    with Rig(2) as rig:
        for host in rig.hosts:
            host.hosts_file({"head": rig[0].ip4} if how == "debian" else {})
        endpoint = f"{rig[0].ip4}:29400"
        if how == "debian":
            rig[0].hosts_file({"head": "127.0.1.1", "node1": "127.0.1.1"})
            rig[1].hosts_file({"head": rig[0].ip4, "node1": rig[0].ip4, "node2": "127.0.1.1"})
            endpoint = "head:29400"
        nodes = [run(h, endpoint, *([f"--local-addr={h.ip4}"] if how == "local-addr" else []), DDP,
                     backend="static" if how == "static" else "c10d") for h in rig.hosts]
        assert [n.wait() for n in nodes] == [0, 0], "\n".join(n.output() for n in nodes)
        for n in nodes:
            assert re.search("trained [01] of 2 over eth0", n.output())
            why = "that of --local-addr" if how == "local-addr" else "by which this node reaches the others"
            said = f"the workers' network is interface eth0, {why} (GLOO_SOCKET_IFNAME=eth0 TP_SOCKET_IFNAME=eth0;"
            assert n.output().count(said) == 1, n.output()


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_a_verdict_names_a_host_whose_name_nobody_knows(backend: str) -> None:
    with Rig(2) as rig:
        for host in rig.hosts:
            host.hosts_file({})
        fail = ["--no-python", "sh", "-c", "sleep 0.5; [ $$RANK = 1 ] || exit 7; sleep 3"]
        nodes = [run(h, f"{rig[0].ip4}:29400", *fail, backend=backend) for h in rig.hosts]
        assert [n.wait() for n in nodes] == [1, 1], "\n".join(n.output() for n in nodes)
        for n in nodes:  # both: they share the record
            assert re.search(r"^muster: the job failed: rank 0 on node1 \(local rank 0, pid \d+\): ",
                             n.output(), re.M), n.output()


def test_net_chooses_for_all_three() -> None:
    with Rig(2) as rig:
        second_network(rig)
        at = "node1:29400"
        for net, want in (("fast0", "fast0"), ("10.88.0.0/16", "fast0"), ("fd77::/16", "eth0")):
            assert shown([run(h, at, f"--net={net}", *SHOW) for h in rig.hosts]) == [
                f"{want}|{want}|={want}"] * 2
        assert shown([run(h, at, *SHOW, MUSTER_NET="fast0") for h in rig.hosts]) == [
            "fast0|fast0|=fast0"] * 2
        # What the user has set stays, even if it is empty.
        assert shown([run(h, at, "--net=fast0", *SHOW, NCCL_SOCKET_IFNAME="eth", GLOO_SOCKET_IFNAME="")
                      for h in rig.hosts]) == ["|fast0|eth"] * 2
        # The interface of an address, or of what a name leads to; no address of this machine
        # decides nothing.
        hosts = {h.name: h.ip for h in rig.hosts} | {f"fast{h.index}": f"10.88.0.{h.index + 1}" for h in rig.hosts}
        for h in rig.hosts:
            h.hosts_file(hosts)
        assert shown([run(rig[0], at, f"--local-addr={rig[0].ip4}", *SHOW),
                      run(rig[1], at, "--local-addr=fast1", *SHOW)]) == ["eth0|eth0|", "fast0|fast0|"]
        assert shown([run(rig[0], at, f"--local-addr={rig[0].ip4}", *SHOW),
                      run(rig[1], at, "--local-addr=203.0.113.9", *SHOW)]) == ["eth0|eth0|"] * 2


def test_jobs_of_one_node_are_left_alone() -> None:
    with Rig(1) as rig:
        assert shown([run(rig[0], f"{rig[0].ip4}:29400", *SHOW, nodes=1)]) == ["||"]
        assert shown([rig[0].start([MUSTER, "run", "--standalone", "--net=eth0", *SHOW])]) == [
            "eth0|eth0|=eth0"]


def test_a_net_that_is_not_there_is_refused() -> None:
    with Rig(1) as rig:
        rig[0].run(["ip", "addr", "del", f"{rig[0].ip6}/64", "dev", "eth0"])
        for net, why in (("ib0", "there is no such interface"),
                         ("192.0.2.0/24", "no interface has an address in it")):
            n = run(rig[0], f"{rig[0].ip4}:29400", f"--net={net}", "--no-python", "touch", "/dev/null")
            assert n.wait() == 1
            assert f"--net={net}: {why}" in n.output()
            assert "This machine has: lo 127.0.0.1/8, eth0 10.77.0.1/24" in n.output()


@pytest.mark.parametrize("kind", ["etcd-v3", "etcd-v2", "etcd", "serve"])
def test_on_etcd_the_connection_tells(tmp_path: Path, kind: str) -> None:
    with Rig(3) as rig:
        for host in rig.hosts:
            host.hosts_file({})
        url = f"http://{rig[2].ip4}:2379"
        if kind == "serve":
            at = ",".join(f"{h.ip4}:2379" for h in rig.hosts)
            nodes = [run(h, at, "--rdzv-serve", *SHOW, nodes=3, backend="etcd-v3") for h in rig.hosts]
        else:
            etcd = rig[2].start([shutil.which("etcd"), "--data-dir", str(tmp_path / "data"), "--enable-v2",
                                 "--listen-client-urls", url, "--advertise-client-urls", url])
            etcd.wait_for("ready to serve client requests")
            nodes = [run(h, f"{rig[2].ip4}:2379", *SHOW, backend=kind) for h in rig.hosts[:2]]
        assert shown(nodes) == ["eth0|eth0|"] * len(nodes)
