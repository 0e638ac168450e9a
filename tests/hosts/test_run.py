"""`muster run` on several hosts: how groups form, and what becomes of them when hosts,
networks, names and clocks fail. Every case ends well, or in a right message in its time."""
from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from rig import MUSTER, ROOT, Host, Process, Rig

WORKER = str(Path(__file__).with_name("worker.py"))
ENV = {"PYTHONPATH": str(ROOT / "python/src"),
       "MUSTER_LIBRARY": str(ROOT / "build/libmuster.so.0"), "OMP_NUM_THREADS": "1"}
# A lost node is noticed within three seconds, and nobody is waited for longer than this.
CONF = "join_timeout=25,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


def node(host: Host, endpoint: str, tmp: Path, *options: str, nnodes: str = "3",
         nproc: int = 1, conf: str = CONF, backend: str = "c10d") -> Process:
    return host.start([MUSTER, "run", f"--nnodes={nnodes}", f"--nproc-per-node={nproc}",
                       f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}",
                       "--rdzv-id=job", f"--rdzv-conf={conf}", *options, WORKER, str(tmp)],
                      **ENV)


def up(nodes: list[Process], world: int, times: int = 1) -> dict[int, int]:
    """Waits until a group of that size is up, `times` in all; rank -> pid of its workers."""
    found: dict[int, int] = {}
    for n in nodes:
        pattern = rf"up rank (\d+) of {world} on \S+ pid (\d+)"
        n.wait_for_match(pattern, times * world // len(nodes), timeout=90)
        for rank, pid in re.findall(pattern, n.output()):
            found[int(rank)] = int(pid)
    assert sorted(found) == list(range(world))
    return found


def finish(nodes: list[Process], tmp: Path) -> None:
    (tmp / "stop").touch()
    for n in nodes:
        assert n.wait(60) == 0, n.output()
        assert n.host.processes().keys() <= {p.pid for p in nodes}


def test_three_hosts_two_workers_each(tmp_path: Path) -> None:
    with Rig(3) as rig:
        nodes = [node(h, "node1:29400", tmp_path, nproc=2) for h in rig.hosts]
        up(nodes, 6)
        finish(nodes, tmp_path)
        for host in rig.hosts:
            assert host.processes() == {}


def test_eight_hosts(tmp_path: Path) -> None:
    with Rig(8) as rig:
        nodes = [node(h, "node1:29400", tmp_path, nnodes="8") for h in rig.hosts]
        up(nodes, 8)
        finish(nodes, tmp_path)


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_one_family_only(tmp_path: Path, family: str) -> None:
    with Rig(3, ipv4=family == "ipv4", ipv6=family == "ipv6") as rig:
        end = rig[0].ip4 if rig.ipv4 else f"[{rig[0].ip6}]"
        nodes = [node(h, f"{end}:29400", tmp_path) for h in rig.hosts]
        up(nodes, 3)
        finish(nodes, tmp_path)


def test_late_and_lost_frames(tmp_path: Path) -> None:
    with Rig(3) as rig:
        for host in rig.hosts[1:]:
            host.bad_cable(delay_ms=30, jitter_ms=20, loss=3)
        nodes = [node(h, "node1:29400", tmp_path) for h in rig.hosts]
        up(nodes, 3)
        finish(nodes, tmp_path)


def test_the_hosts_start_in_any_order(tmp_path: Path) -> None:
    with Rig(3) as rig:
        early = [node(h, "node1:29400", tmp_path) for h in rig.hosts[1:]]
        for n in early:
            assert n.popen.poll() is None
        nodes = [node(rig[0], "node1:29400", tmp_path), *early]
        up(nodes, 3)
        finish(nodes, tmp_path)


def test_a_dead_name_server_and_numeric_addresses(tmp_path: Path) -> None:
    with Rig(3) as rig:
        for host in rig.hosts:
            host.hosts_file({})
            host.dead_dns()
        nodes = [node(h, f"{rig[0].ip4}:29400", tmp_path, f"--local-addr={h.ip4}")
                 for h in rig.hosts]
        up(nodes, 3)
        finish(nodes, tmp_path)


@pytest.mark.parametrize("dns", ["none", "dead"])
def test_hosts_whose_names_nobody_knows(tmp_path: Path, dns: str) -> None:
    """Not even themselves: the workers are told addresses."""
    with Rig(3) as rig:
        for host in rig.hosts:
            host.hosts_file({})
            if dns == "dead":
                host.dead_dns()
        nodes = [node(h, f"{rig[0].ip4}:29400", tmp_path) for h in rig.hosts]
        up(nodes, 3)
        finish(nodes, tmp_path)


def test_hosts_whose_names_nobody_knows_on_etcd(tmp_path: Path) -> None:
    """The same where the rendezvous is elsewhere: their end of the connection tells."""
    with Rig(4) as rig:
        for host in rig.hosts:
            host.hosts_file({})
        rig[1].dead_dns()
        url = f"http://{rig[3].ip4}:2379"
        etcd = rig[3].start([shutil.which("etcd"), "--data-dir", str(tmp_path / "data"), "--enable-v2",
                             "--listen-client-urls", url, "--advertise-client-urls", url])
        etcd.wait_for("ready to serve client requests")
        for backend in ("etcd-v3", "etcd-v2"):
            there = tmp_path / backend
            there.mkdir()
            nodes = [node(h, f"{rig[3].ip4}:2379", there, backend=backend) for h in rig.hosts[:3]]
            up(nodes, 3)
            assert "does not resolve, so MASTER_ADDR is '10.77.0.1'" in nodes[0].output()
            finish(nodes, there)
        # There, worker 0 serves: what it and the others are told is enough.
        nodes = [h.start([MUSTER, "run", "--nnodes=3", "--rdzv-backend=etcd", "--rdzv-id=old",
                          f"--rdzv-endpoint={rig[3].ip4}:2379", "--no-python", "sh", "-c",
                          "echo rank $RANK at $MASTER_ADDR"]) for h in rig.hosts[:3]]
        assert [n.wait() for n in nodes] == [0, 0, 0], nodes[0].output()
        said = [re.search(r"rank (\d) at (\S+)", n.output()).groups() for n in nodes]
        zero = next(n for n, (rank, _) in zip(nodes, said) if rank == "0")
        assert {at for _, at in said} == {zero.host.ip4}


def test_a_dead_name_server_and_a_name(tmp_path: Path) -> None:
    """Nobody can say who `head` is: an end in time, with the name in the message."""
    with Rig(1) as rig:
        rig[0].hosts_file({})
        rig[0].dead_dns()
        n = node(rig[0], "head.example:29400", tmp_path, conf=CONF + ",read_timeout=4")
        assert n.wait(30) == 1
        assert "head.example" in n.output()


def test_names_that_mean_something_else_on_each_host(tmp_path: Path) -> None:
    """As with containers: every host takes its own name for 127.0.1.1, and calls the others
    by names of its own. Only the endpoint must mean the same to all."""
    with Rig(3) as rig:
        for host in rig.hosts:
            host.hosts_file({host.name: "127.0.1.1", "head": rig[0].ip4}
                            | {f"peer{h.index}-of-{host.name}": h.ip4 for h in rig.hosts})
        nodes = [node(h, "head:29400", tmp_path, f"--local-addr={h.ip4}") for h in rig.hosts]
        up(nodes, 3)
        finish(nodes, tmp_path)


def test_clocks_an_hour_apart(tmp_path: Path) -> None:
    with Rig(3) as rig:
        rig[1].clock_ahead(3600)
        rig[2].clock_ahead(-3600)
        nodes = [node(h, "node1:29400", tmp_path) for h in rig.hosts]
        up(nodes, 3)
        finish(nodes, tmp_path)


def test_a_worker_is_killed(tmp_path: Path) -> None:
    with Rig(3) as rig:
        nodes = [node(h, "node1:29400", tmp_path, "--max-restarts=1") for h in rig.hosts]
        pids = up(nodes, 3)
        os.kill(pids[2], signal.SIGKILL)
        again = up(nodes, 3, times=2)
        assert set(again.values()).isdisjoint(pids.values())
        finish(nodes, tmp_path)


@pytest.mark.parametrize("how", ["cable", "kill", "stop", "off"])
def test_a_host_is_lost_and_the_rest_go_on(tmp_path: Path, how: str) -> None:
    with Rig(3) as rig:
        nodes = [node(h, "node1:29400", tmp_path, "--max-restarts=3", nnodes="2:3")
                 for h in rig.hosts]
        up(nodes, 3)
        if how == "cable":
            rig[2].link(up=False)
        elif how == "kill":
            nodes[2].signal(signal.SIGKILL)
        elif how == "stop":
            rig[2].signal_all(signal.SIGSTOP)
        else:
            rig[2].power_off()
        up(nodes[:2], 2)
        if how == "kill":  # nothing outlives the agent
            nodes[2].wait(5)
            nodes[2].wait_until(lambda: rig[2].processes() == {}, 10)
        finish(nodes[:2], tmp_path)


def test_a_half_open_connection_is_found(tmp_path: Path) -> None:
    """A host falls off the network without a word, and heartbeats in the shared state come every
    ten minutes: between nodes of ours they come every 5 s, and find out."""
    slow = "join_timeout=60,last_call_timeout=1,keep_alive_interval=600"
    with Rig(3) as rig:
        nodes = [node(h, "node1:29400", tmp_path, "--max-restarts=3", nnodes="2:3", conf=slow)
                 for h in rig.hosts]
        up(nodes, 3)
        rig[2].link(up=False)
        up(nodes[:2], 2)
        finish(nodes[:2], tmp_path)


def test_a_lost_host_comes_back(tmp_path: Path) -> None:
    with Rig(3) as rig:
        nodes = [node(h, "node1:29400", tmp_path, "--max-restarts=3", nnodes="2:3")
                 for h in rig.hosts]
        up(nodes, 3)
        nodes[2].signal(signal.SIGKILL)
        up(nodes[:2], 2)
        back = node(rig[2], "node1:29400", tmp_path, "--max-restarts=3", nnodes="2:3")
        back.wait_for("of 3 on node3", 60)
        finish([*nodes[:2], back], tmp_path)


def test_a_partition_and_its_end(tmp_path: Path) -> None:
    """The smaller side is cut from the store and ends with a message; the other goes on."""
    with Rig(3) as rig:
        nodes = [node(h, "node1:29400", tmp_path, "--max-restarts=3", nnodes="2:3")
                 for h in rig.hosts]
        up(nodes, 3)
        rig.part(rig.hosts[:2], rig.hosts[2:])
        up(nodes[:2], 2)
        rig.heal()
        finish(nodes[:2], tmp_path)
        if nodes[2].wait(60) != 0:  # it had given up before the cable was back
            assert "node1:29400" in nodes[2].output() or "10.77.0.1" in nodes[2].output()


def test_too_few_hosts_end_in_time_with_a_message(tmp_path: Path) -> None:
    with Rig(2) as rig:
        conf = CONF.replace("join_timeout=25", "join_timeout=4")
        nodes = [node(h, "node1:29400", tmp_path, nnodes="3", conf=conf) for h in rig.hosts]
        assert [n.wait(40) for n in nodes] == [1, 1]
        # Whoever gives up first closes the run; the other may hear of that before its own time.
        said = [n.output() for n in nodes]
        assert any("could not join the rendezvous 'job' within 4 s" in text
                   and "of at least 3" in text for text in said), said
        assert all("could not join" in text or "is closed" in text for text in said), said


def test_nobody_hosts_the_store(tmp_path: Path) -> None:
    with Rig(2) as rig:
        conf = CONF.replace("join_timeout=25", "join_timeout=4") + ",is_host=false,read_timeout=4"
        n = node(rig[1], "node1:29400", tmp_path, nnodes="2", conf=conf)
        assert n.wait(60) == 1
        assert "node1:29400" in n.output() and "refused" in n.output()


def test_a_name_that_does_not_resolve_yet_is_waited_for(tmp_path: Path) -> None:
    """As with a headless service, whose name exists only once its pod does."""
    with Rig(2) as rig:
        for host in rig.hosts:
            host.hosts_file({host.name: host.ip4})
        early = node(rig[1], "head:29400", tmp_path, "--local-addr=" + rig[1].ip4, nnodes="2")
        early.wait_for("head", 20)  # it says what it waits for
        assert early.popen.poll() is None
        for host in rig.hosts:
            host.hosts_file({host.name: host.ip4, "head": rig[0].ip4})
        nodes = [early, node(rig[0], "head:29400", tmp_path, "--local-addr=" + rig[0].ip4,
                             nnodes="2")]
        up(nodes, 2)
        finish(nodes, tmp_path)


def test_the_log_says_who_hosts_and_why(tmp_path: Path) -> None:
    with Rig(2) as rig:
        here, there = rig.hosts
        here.hosts_file({here.name: here.ip4, there.name: there.ip4, "alias": here.ip6})
        host, other = "this process should host", "another process hosts"
        for end, who, why in (("localhost", host, "the endpoint is localhost"),
                              (here.name, host, f"{here.name} is this machine's host name"),
                              (here.ip4, host, f"{here.ip4} belongs to this machine's"),
                              (f"[{here.ip6}]", host, f"{here.ip6} belongs to this machine's"),
                              ("alias", host, "alias"), (there.name, other, there.name),
                              (there.ip4, other, there.ip4), ("nobody", other, "nobody")):
            n = here.start([MUSTER, "run", "--nnodes=1:2", "--rdzv-backend=c10d",
                            f"--rdzv-endpoint={end}:29400", "--no-python",
                            "--rdzv-conf=last_call_timeout=1,read_timeout=2", "true"],
                           TORCH_LOGS="+distributed")
            assert (n.wait() == 0) == (who == host), n.output()
            assert re.search(f"{who} the store: .*{re.escape(why)}", n.output()), n.output()


# What Kubeflow's operator puts into the pods of a job: sizes and ranks of nodes, also under
# the names that a worker reads, and the name of a service that is there when its pod is.
KUBEFLOW = {
    "fixed": {"PET_NNODES": "3", "PET_MASTER_ADDR": "job-worker-0", "PET_MASTER_PORT": "23456"},
    "elastic": {"PET_NNODES": "2:3", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "job",
                "PET_RDZV_ENDPOINT": "job-worker-0:23456", "PET_MAX_RESTARTS": "3",
                "PET_RDZV_CONF": CONF},
}


@pytest.mark.parametrize("kind", KUBEFLOW)
def test_what_kubeflow_sets_is_enough(tmp_path: Path, kind: str) -> None:
    def pod(index: int) -> Process:
        env = {**ENV, **KUBEFLOW[kind], "PET_NPROC_PER_NODE": "2", "PYTHONUNBUFFERED": "1",
               "MASTER_ADDR": "job-worker-0", "MASTER_PORT": "23456", "WORLD_SIZE": "3",
               "RANK": str(index)}
        if kind == "fixed":
            env["PET_NODE_RANK"] = str(index)
        else:  # a pod's own name means nothing to others: the guide's advice
            env["PET_LOCAL_ADDR"] = rig[index].ip4
        return rig[index].start([MUSTER, "run", WORKER, str(tmp_path)], **env)

    with Rig(3) as rig:
        for host in rig.hosts:
            host.hosts_file({host.name: host.ip4})
        early = [pod(2), pod(1)]
        for n in early:
            n.wait_for_match("job-worker-0.*not")  # resolves to nothing yet
        for host in rig.hosts:
            host.hosts_file({host.name: host.ip4, "job-worker-0": rig[0].ip4})
        nodes = [pod(0), *reversed(early)]
        found = up(nodes, 6)
        if kind == "fixed":
            assert [found[r] for r in (0, 1)] == [
                int(pid) for _, pid in sorted(re.findall(r"up rank (\d) of 6 on \S+ pid (\d+)",
                                                         nodes[0].output()))]
        finish(nodes, tmp_path)


def test_who_is_missing_is_named_after_a_restart(tmp_path: Path) -> None:
    with Rig(3) as rig:
        conf = CONF.replace("join_timeout=25", "join_timeout=60")
        nodes = [node(h, "node1:29400", tmp_path, "--max-restarts=3", conf=conf)
                 for h in rig.hosts]
        up(nodes, 3)
        nodes[2].signal(signal.SIGKILL)
        for n in nodes[:2]:
            n.wait_for_match(r"2 of 3 nodes are here, missing: node3 \(until .*\); here: node[12], node[12]")
        back = node(rig[2], "node1:29400", tmp_path, "--max-restarts=3", conf=conf)
        for n in nodes[:2]:
            n.wait_for("the group is complete after")
        finish([*nodes[:2], back], tmp_path)


def test_a_narrow_switch_and_a_group_of_small_messages(tmp_path: Path) -> None:
    """The MTUs do not fit: long frames of one host vanish. What the agents say is short."""
    with Rig(3) as rig:
        rig[1].mtu(1000)
        nodes = [node(h, "node1:29400", tmp_path) for h in rig.hosts]
        up(nodes, 3)
        finish(nodes, tmp_path)
