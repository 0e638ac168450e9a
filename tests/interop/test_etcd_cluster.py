"""etcd-v3 on a cluster of three while everything goes wrong: 8 nodes rendezvous and
re-rendezvous, the leader is killed, a member is stopped, quorum is lost and regained.

No wrong round: in each round every node that was told of it was told the same world and
a rank of its own. No lost node: all are in the last round."""
from __future__ import annotations

import http.client
import http.server
import json
import os
import signal
import subprocess
import threading
import time

import pytest
from etcd_server import BUILD, ROOT, Cluster, Etcd, b64, free_ports
from etcd_nodes import Node
from patience import clock

NODES = 8
CONF = "last_call_timeout=2,join_timeout=120"


class Group:
    """Nodes that re-enter whenever they are told to, and a record of every round."""

    def __init__(self, endpoint: str, run_id: str, directory, count: int = NODES,
                 low: int = 4):
        self.nodes = []
        self.rounds: list[list] = []
        for i in range(count):
            log = open(directory / f"node{i}.log", "w")
            self.nodes.append(Node("etcd-v3", endpoint, run_id, (low, count), CONF, log=log))
            log.close()

    def enter(self, seconds: float = 120) -> list:
        for n in self.nodes:
            n.send("next")
        return self.collect(seconds)

    def collect(self, seconds: float = 120) -> list:
        answers = [n.answer(seconds) for n in self.nodes]
        self.rounds.append(answers)
        return answers

    def check(self) -> None:
        """The invariants of the simulator, on what the nodes were really told."""
        told: dict[int, dict[int, int]] = {}
        worlds: dict[int, set] = {}
        for i, node in enumerate(self.nodes):
            last = -1
            for _, line in node.seen:
                words = line.split()
                if words[0] != "joined":
                    continue
                number, rank, world = map(int, words[1:4])
                assert number > last, f"node {i} went back from round {last} to {number}"
                last = number
                assert 0 <= rank < world <= len(self.nodes)
                ranks = told.setdefault(number, {})
                assert rank not in ranks, f"round {number}: rank {rank} twice"
                ranks[rank] = i
                worlds.setdefault(number, set()).add((world, words[4], words[5]))
        for number, seen in worlds.items():
            assert len(seen) == 1, f"round {number}: {seen}"

    def all_in(self, seconds: float = 120) -> None:
        """Everybody re-enters as told until one round has them all."""
        end = clock() + seconds
        answers = self.enter(seconds)
        while True:
            bad = [a.text for a in answers if a.what() != "joined"]
            assert not bad, bad
            if {a.world for a in answers} == {len(self.nodes)}:
                return
            assert clock() < end
            answers = self.enter(end - clock())

    def kill(self) -> None:
        for n in self.nodes:
            n.kill()


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path, v2=False) as c:
        yield c


def test_the_cluster_falls_apart_and_comes_back(cluster, tmp_path):
    group = Group(cluster.endpoints, "chaos", tmp_path)
    try:
        group.all_in()

        # The leader dies while all re-enter.
        leader = cluster.leader()
        killer = threading.Timer(0.1, leader.kill)
        killer.start()
        group.all_in()
        killer.join()
        leader.start()

        # A member stops for ten seconds, and goes on: the leader, which is the worst.
        stopped = cluster.leader()
        stopped.signal(signal.SIGSTOP)
        resume = threading.Timer(10, stopped.signal, [signal.SIGCONT])
        resume.start()
        group.all_in()
        resume.join()

        # Quorum is lost while all re-enter, and regained.
        victims = cluster.members[:2]
        for n in group.nodes[: NODES // 2]:
            n.send("next")
        for v in victims:
            v.kill()
        for n in group.nodes[NODES // 2:]:
            n.send("next")
        time.sleep(3)
        for v in victims:
            v.start()
        answers = group.collect()
        assert {a.what() for a in answers} == {"joined"}, [a.text for a in answers]
        group.all_in()
        group.check()
    finally:
        group.kill()


def test_quorum_that_does_not_come_back_is_an_error_in_time(cluster, tmp_path):
    """Each node gets a clear error before its deadline, not silence."""
    nodes = [Node("etcd-v3", cluster.endpoints, "lost", (3, 3), "join_timeout=8")
             for _ in range(2)]
    try:
        for n in nodes:
            n.send("next")
        time.sleep(1)
        for v in cluster.members[:2]:
            v.kill()
        begin = clock()
        for n in nodes:
            a = n.answer(60)
            assert a.what() == "failed"
            assert a[1] in ("MUSTER_ETIMEDOUT", "MUSTER_ECONN"), a.text
            print(a.text)
        assert clock() - begin < 45
    finally:
        for n in nodes:
            n.kill()


def test_any_number_of_jobs_and_nothing_left(tmp_path):
    """Jobs side by side do not see each other, and go without a trace."""
    with Etcd(tmp_path, v2=False) as etcd:
        jobs = [[Node("etcd-v3", etcd.endpoint, f"job/{j}", (2, 2)) for _ in range(2)]
                for j in range(4)]
        try:
            for job in jobs:
                for n in job:
                    n.send("next")
            for job in jobs:
                answers = [n.answer() for n in job]
                assert sorted(a.rank for a in answers) == [0, 1]
                assert {a.world for a in answers} == {2}
            # Every key of a job hangs on a lease.
            _, got = etcd.v3("/v3/kv/range", {"key": b64("/muster/"), "range_end": b64("/muster0")})
            assert len(got["kvs"]) >= 4 * 3
            assert all(int(kv.get("lease", 0)) for kv in got["kvs"])
            for job in jobs:
                assert job[0]("shutdown").what() == "done"
        finally:
            for job in jobs:
                for n in job:
                    n.kill()


def test_a_dead_node_is_known_by_its_lease(tmp_path):
    """Heartbeats would need minutes here: it is etcd that tells."""
    conf = "last_call_timeout=5,keep_alive_interval=60,lease_ttl=2"
    with Etcd(tmp_path, v2=False) as etcd:
        nodes = [Node("etcd-v3", etcd.endpoint, "lease", (2, 3), conf) for _ in range(3)]
        try:
            for n in nodes:
                n.send("next")
            assert sorted(n.answer().rank for n in nodes) == [0, 1, 2]
            assert len(etcd.keys("/muster/lease/nodes/")) == 3
            nodes[1].kill()
            for n in (nodes[0], nodes[2]):
                n.wait_news("lost")
            for n in (nodes[0], nodes[2]):
                n.send("next")
            answers = [nodes[0].answer(), nodes[2].answer()]
            assert {a.world for a in answers} == {2}, [a.text for a in answers]
            # One that stops for longer than its lease is taken for dead, and comes back.
            nodes[2].proc.send_signal(signal.SIGSTOP)
            nodes[0].wait_news("lost")
            nodes[2].proc.send_signal(signal.SIGCONT)
            nodes[0].send("next")
            nodes[2].send("next")
            answers = [nodes[0].answer(), nodes[2].answer()]
            assert {a.world for a in answers} == {2}, [a.text for a in answers]
        finally:
            for n in nodes:
                n.kill()


class NoGrants(http.server.BaseHTTPRequestHandler):
    """In front of an etcd: while `full`, no lease is granted; `loose` are writes without one."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        front = self.server
        if self.path == "/v3/watch":
            status, answer = 503, b'{"error":"no watches here","code":14}'
        elif self.path == "/v3/lease/grant" and front.full:
            front.refused += 1
            status = 500
            answer = b'{"error":"etcdserver: mvcc: database space exceeded","code":8}'
        else:
            if self.path == "/v3/kv/txn":
                front.txns += 1
                front.loose += [op for op in json.loads(body)["success"]
                                if "request_put" in op and "lease" not in op["request_put"]]
            conn = http.client.HTTPConnection("127.0.0.1", front.upstream, timeout=60)
            conn.request("POST", self.path, body)
            got = conn.getresponse()
            status, answer = got.status, got.read()
            conn.close()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def test_nothing_is_written_without_a_lease(tmp_path):
    """A lease has run out and there is no other yet: what is written now would stay for ever."""
    with Etcd(tmp_path, v2=False) as etcd, \
            http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoGrants) as front:
        front.upstream, front.full, front.refused, front.txns, front.loose = etcd.port, False, 0, 0, []
        threading.Thread(target=front.serve_forever, daemon=True).start()
        node = Node("etcd-v3", f"127.0.0.1:{front.server_port}", "loose", (1, 1),
                    "last_call_timeout=1,join_timeout=120")
        try:
            assert node("next").what() == "joined"
            _, got = etcd.v3("/v3/kv/range", {"key": b64("/muster/loose/state")})
            front.full = True
            etcd.v3("/v3/lease/revoke", {"ID": got["kvs"][0]["lease"]})
            node.send("next")
            # The first refusal is known to the node when the second comes.
            for what, more in (("refused", 2), ("txns", 2)):
                want = getattr(front, what) + more
                end = clock() + 60
                while getattr(front, what) < want and clock() < end:
                    time.sleep(0.05)
                assert getattr(front, what) >= want, what
            front.full = False
            assert node.answer(120).what() == "joined"
            assert not front.loose
        finally:
            node.kill()
            front.shutdown()


@pytest.mark.parametrize("backend", ["etcd-v2", "etcd-v3"])
def test_nobody_there_is_an_error_in_time(backend):
    node = Node(backend, f"127.0.0.1:{free_ports(1)[0]}", "none", (1, 1), "read_timeout=2")
    try:
        text = node("next").text
        assert text.startswith("failed MUSTER_ECONN") and "connection refused" in text
    finally:
        node.kill()


def test_late_joiner_and_closing(tmp_path):
    with Etcd(tmp_path, v2=False) as etcd:
        nodes = [Node("etcd-v3", etcd.endpoint, "late", (1, 2), "last_call_timeout=4")
                 for _ in range(3)]
        try:
            assert nodes[0]("next").world == 1
            nodes[1].send("next")
            nodes[0].wait_news("waiting")
            nodes[0].send("next")
            answers = [nodes[0].answer(), nodes[1].answer()]
            assert sorted(a.rank for a in answers) == [0, 1]
            assert len({a.address for a in answers}) == 1
            nodes[2].send("next")  # a spare: all places are taken
            assert nodes[0]("shutdown").what() == "done"
            nodes[1].wait_news("closed")
            # Not needed if it was a spare by then, else too late.
            assert nodes[2].answer()[1] in ("MUSTER_EGRACEFUL", "MUSTER_ECLOSED")
            assert nodes[1]("next").text.startswith("failed MUSTER_ECLOSED")
        finally:
            for n in nodes:
                n.kill()


TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
note = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND)
os.write(note, f"start {rank} {world} {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}\\n".encode())
steps = 10**6 if world == 3 else 20
for step in range(steps):
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == world
    time.sleep(0.02)
os.write(note, f"trained {rank} {world}\\n".encode())
dist.destroy_process_group()
os._exit(0)  # gloo's threads may abort an interpreter that goes away under them
"""


def test_the_store_host_is_killed_mid_job(tmp_path):
    """The rendezvous is in etcd: whoever dies, the others form the next round."""
    script, notes = tmp_path / "train.py", tmp_path / "notes"
    script.write_text(TRAIN)
    notes.write_text("")
    env = dict(os.environ, NOTES=str(notes), OMP_NUM_THREADS="1",
               PATH=f"{ROOT}/build/venv/bin:{os.environ['PATH']}")
    with Etcd(tmp_path, v2=False) as etcd:
        # The agent with the smallest address is rank 0, and hosts the workers' store.
        agents = [subprocess.Popen(
            [BUILD / "muster", "run", "--nnodes", "2:3", "--nproc-per-node", "1",
             "--rdzv-backend", "etcd-v3", "--rdzv-endpoint", etcd.endpoint, "--rdzv-id", "kill",
             "--rdzv-conf", "last_call_timeout=5", "--max-restarts", "3",
             "--local-addr", f"127.0.0.{i + 1}", str(script)],
            env=env, stdout=subprocess.DEVNULL,
            stderr=open(tmp_path / f"agent{i}.log", "w")) for i in range(3)]
        try:
            wait_for(notes, "start", 3)
            agents[0].kill()
            agents[0].wait()
            wait_for(notes, "trained", 2, 150)
            assert [a.wait(timeout=60) for a in agents[1:]] == [0, 0]
        finally:
            for a in agents:
                if a.poll() is None:
                    a.kill()
                    a.wait()
        lines = [line.split() for line in notes.read_text().splitlines()]
        before = {line[3] for line in lines if line[0] == "start" and line[2] == "3"}
        after = {line[3] for line in lines if line[0] == "start" and line[2] == "2"}
        assert len(before) == 1 and len(after) == 1 and before != after
        assert before.pop().startswith("127.0.0.1:") and after.pop().startswith("127.0.0.2:")


def wait_for(path, word: str, count: int, seconds: float = 90) -> None:
    end = clock() + seconds
    while sum(line.startswith(word) for line in path.read_text().splitlines()) < count:
        assert clock() < end, path.read_text()
        time.sleep(0.1)
