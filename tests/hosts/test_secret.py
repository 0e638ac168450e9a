"""Jobs with a secret on several hosts: who gets in, who does not, and what either is told."""
from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from rig import MUSTER, ROOT, Host, Process, Rig, start_munged
from test_run import CONF, ENV, WORKER, finish, node, up

TORCHRUN = ROOT / "build/venv/bin/torchrun"
ATTACKER = str(Path(__file__).with_name("attacker.py"))
TOKEN = "a-token-that-nobody-else-has-0123456789"
PATIENT = CONF.replace("join_timeout=25", "join_timeout=240")  # while others start, are refused and end


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return f"--token-file={path}"


def ports(host: Host) -> list[int]:
    out = host.run(["ss", "-ltnH"])
    return sorted({int(line.split()[3].rsplit(":", 1)[1]) for line in out.splitlines() if host.ip4 in line})


def no_seat(got: str) -> None:
    """Whoever passes for a worker has nothing of the agents'."""
    answers = dict(line.split(": ", 1) for line in got.splitlines())
    for seat in ("ranks", "hello", "job", "lanes", "stats"):
        assert answers[seat] == "b''", got


@pytest.mark.parametrize("backend", ["c10d", "static"])
@pytest.mark.parametrize("encrypt", [False, True])
def test_a_group_with_a_secret(tmp_path: Path, token: str, backend: str, encrypt: bool) -> None:
    with Rig(3) as rig:
        more = ["--encrypt"] if encrypt else []
        nodes = [node(h, "node1:29400", tmp_path, token, *more, *([f"--node-rank={i}"] if backend == "static" else []),
                      backend=backend, conf=CONF if backend == "c10d" else "timeout=25", nproc=2)
                 for i, h in enumerate(rig.hosts)]
        up(nodes, 6)
        finish(nodes, tmp_path)
        assert not any("no secret" in n.output() for n in nodes)


def test_a_stranger_gets_nothing(tmp_path: Path, token: str) -> None:
    """Not a key, not a seat, not a number; and the job does not notice."""
    with Rig(3) as rig:
        nodes = [node(h, "node1:29400", tmp_path, token, nnodes="2") for h in rig.hosts[:2]]
        up(nodes, 2)
        for host in rig.hosts[:2]:
            for port in ports(host):
                got = rig[2].run([sys.executable, ATTACKER, host.ip4, str(port), "job"])
                for line in got.splitlines():
                    name, answer = line.split(": ", 1)
                    told = name == "get" and "Y3RoaXMgam9iIGhhcyBhIHNlY3JldC" in answer  # "this job has a secret"
                    assert answer == "b''" or told or re.search("ConnectionResetError|BrokenPipeError", answer), got
                    assert b"node1" not in answer.encode() and "10.77" not in answer, got
        said = "".join(n.output() for n in nodes)
        assert f"refused {rig[2].ip4}:" in said
        assert len(re.findall(r"refused \d", said)) <= 40  # at a bounded rate
        finish(nodes, tmp_path)


def test_other_tokens_none_and_another_job(tmp_path: Path, token: str) -> None:
    other = tmp_path / "other"
    other.write_text("another-token-of-another-job-9876543210")
    other.chmod(0o600)
    with Rig(3) as rig:
        first = node(rig[0], "node1:29400", tmp_path, token, nnodes="2", conf=PATIENT)
        wrong = node(rig[2], "node1:29400", tmp_path, f"--token-file={other}", nnodes="2")
        assert wrong.wait() == 1
        assert "it holds another secret" in wrong.output() and "--token-file" in wrong.output()
        none = node(rig[2], "node1:29400", tmp_path, nnodes="2")
        assert none.wait() == 1
        assert "the job has a secret, and this node was given none" in none.output()
        stranger = rig[2].start([MUSTER, "run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400",
                                 "--rdzv-id=another", f"--rdzv-conf={CONF}", token, WORKER, str(tmp_path)], **ENV)
        assert stranger.wait() == 1
        assert "another job's store: check --rdzv-id" in stranger.output()
        plain = node(rig[2], "node1:29400", tmp_path, token, "--encrypt", nnodes="2")
        assert plain.wait() == 1
        assert "--encrypt must be given on all nodes" in plain.output()
        second = node(rig[1], "node1:29400", tmp_path, token, nnodes="2")
        up([first, second], 2)
        said = first.output()
        assert "refused 10.77.0.3" in said and "the secrets of the two nodes differ" in said
        assert "another --rdzv-id" in said
        finish([first, second], tmp_path)


def torch_node(host: Host, tmp: Path) -> Process:
    return host.start([str(TORCHRUN), "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400",
                       "--rdzv-id=job", f"--rdzv-conf={CONF},is_host=0", WORKER, str(tmp)], **ENV)


def test_torchrun_is_told_why_it_is_refused(tmp_path: Path, token: str) -> None:
    with Rig(3) as rig:
        first = node(rig[0], "node1:29400", tmp_path, token, nnodes="2", conf=PATIENT)
        theirs = torch_node(rig[2], tmp_path)
        assert theirs.wait() != 0
        assert "this job has a secret, which torchrun cannot prove" in theirs.output()
        assert "a torchrun, which cannot prove itself; it was told so" in first.output()
        second = node(rig[1], "node1:29400", tmp_path, token, nnodes="2", conf=PATIENT)
        up([first, second], 2)
        for host in rig.hosts[:2]:  # A machine of the job is for its workers: it gives nobody a seat.
            beside = torch_node(host, tmp_path)
            none = node(host, "node1:29400", tmp_path, nnodes="2", conf=f"{CONF},is_host=0")
            assert beside.wait() != 0
            assert "this job has a secret, which torchrun cannot prove" in beside.output()
            assert none.wait() == 1
            assert "the job has a secret, and this node was given none" in none.output()
        finish([first, second], tmp_path)


def test_torchrun_is_admitted_on_request(tmp_path: Path, token: str) -> None:
    with Rig(2) as rig:
        first = node(rig[0], "node1:29400", tmp_path, token, "--token-optional", nnodes="2")
        theirs = torch_node(rig[1], tmp_path)
        up([first, theirs], 2)
        (tmp_path / "stop").touch()
        assert first.wait() == 0 and theirs.wait() == 0, first.output() + theirs.output()
        assert "--token-optional" in first.output()


def test_a_store_of_torchs_proves_nothing(tmp_path: Path, token: str) -> None:
    with Rig(2) as rig:
        theirs = rig[0].start([str(TORCHRUN), "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400",
                               "--rdzv-id=job", f"--rdzv-conf={CONF}", WORKER, str(tmp_path)], **ENV)
        ours = node(rig[1], "node1:29400", tmp_path, token, nnodes="2")
        assert ours.wait() == 1
        assert "a store of torch's, which cannot prove" in ours.output()
        theirs.signal(15)
        theirs.wait()


SNIFF = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("eth0", 0)); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
print("sniffing", flush=True)
with open(sys.argv[1], "wb", buffering=0) as f:
    while True:
        f.write(s.recv(65536))
"""
SPEAKER = """
import os, sys, time
from datetime import timedelta
from torch.distributed import TCPStore
rank = int(os.environ["RANK"])
s = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=60))
s.set(f"telltale-key-{rank}", f"telltale-value-{rank}")
assert s.get(f"telltale-key-{1 - rank}") == f"telltale-value-{1 - rank}".encode()
much = bytes(range(256)) * 28000  # 7 MB through the relay, both ways
s.set(f"much-{rank}", much)
assert s.get(f"much-{1 - rank}") == much
s.add("through", 1)
while s.add("through", 0) < 2:
    time.sleep(0.02)
print("spoke to", os.environ["MASTER_ADDR"], os.environ.get("MUSTER_MASTER_ADDR"), "token" if "MUSTER_TOKEN" in os.environ else "-", flush=True)
"""


@pytest.mark.parametrize("encrypt", [False, True])
def test_what_a_listener_on_the_wire_sees(tmp_path: Path, encrypt: bool) -> None:
    script = tmp_path / "speaker.py"
    script.write_text(SPEAKER)
    with Rig(2) as rig:
        listener = rig[0].start([sys.executable, "-c", SNIFF, str(tmp_path / "wire")])
        listener.wait_for("sniffing")
        more = ["--encrypt"] if encrypt else []
        nodes = [h.start([MUSTER, "run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=job",
                          f"--rdzv-conf={CONF}", *more, str(script)], MUSTER_TOKEN=TOKEN, PYTHON_EXEC=sys.executable, **ENV) for h in rig.hosts]
        assert [n.wait() for n in nodes] == [0, 0], nodes[0].output() + nodes[1].output()
        listener.signal(9)
        wire = (tmp_path / "wire").read_bytes()
        said = nodes[0].output() + nodes[1].output()
        assert "spoke to 127.0.0.1 node" in said if encrypt else re.search(r"spoke to node\d\S* None -", said), said
        assert TOKEN.encode() not in wire
        assert b"muster/auth" in wire  # it did listen to the right wire
        for word in (b"telltale-key", b"telltale-value", b"muster/run"):
            assert (word in wire) == (not encrypt), word


@pytest.mark.parametrize("content, mode, says", [
    ("", 0o600, "it is empty"),
    ("short", 0o600, "a token of 5 bytes can be guessed"),
    (TOKEN, 0o640, "others may read or change it (mode 0640)"),
    (None, 0, "No such file"),
])
def test_bad_token_files(tmp_path: Path, content: str | None, mode: int, says: str) -> None:
    path = tmp_path / "t"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with Rig(1) as rig:
        n = node(rig[0], "node1:29400", tmp_path, f"--token-file={path}", nnodes="1")
        assert n.wait() != 0
        assert f"token file {path}" in n.output() and says in n.output()


@pytest.mark.parametrize("encrypt", [False, True])
def test_munge_gives_the_secret(tmp_path: Path, encrypt: bool) -> None:
    """Credentials that only the job's own user can decode; another user's node is told so."""
    import os
    import shutil
    import tempfile
    if not shutil.which("munged"):
        pytest.skip("no munged here")
    with tempfile.TemporaryDirectory() as there, Rig(3) as rig:
        os.chmod(there, 0o755)
        daemon = start_munged(rig[2], Path(there))
        env = {**ENV, "MUSTER_MUNGE_SOCKET": f"{there}/munge.socket"}

        def munged(host: Host, *before: str, more: str = "") -> Process:
            return host.start([*before, MUSTER, "run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job",
                               "--rdzv-endpoint=node1:29400", *(["--encrypt"] if encrypt else []),
                               f"--rdzv-conf={CONF},munge=1{more}", WORKER, str(tmp_path)], **env)

        first = munged(rig[0])
        first.wait_until(lambda: ports(rig[0]) == [29400])
        exe = Path(there, "muster")
        shutil.copy(MUSTER, exe)
        other = rig[2].start(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(exe), "run", "--nnodes=2",
                              "--rdzv-backend=c10d", "--rdzv-id=job", "--rdzv-endpoint=node1:29400",
                              *(["--encrypt"] if encrypt else []), f"--rdzv-conf={CONF},munge=1,is_host=0", "--no-python", "true"], **env)
        assert other.wait() == 1
        assert "it is another user's job" in other.output()
        nodes = [first, munged(rig[1])]
        up(nodes, 2)
        finish(nodes, tmp_path)
        daemon.signal(15)
        daemon.wait()


def test_munge_down_and_clocks_apart(tmp_path: Path) -> None:
    """Each is told in a sentence; the job of those who belong goes on."""
    import os
    import shutil
    import tempfile
    if not shutil.which("munged"):
        pytest.skip("no munged here")
    with tempfile.TemporaryDirectory() as there, Rig(3) as rig:
        os.chmod(there, 0o755)
        def munged(host: Host, name: str) -> Process:
            return host.start([MUSTER, "run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job",
                               "--rdzv-endpoint=node1:29400", f"--rdzv-conf={CONF},munge=1", WORKER, str(tmp_path)],
                              **ENV, MUSTER_MUNGE_SOCKET=f"{there}/{name}.socket")

        daemons = [start_munged(rig[2], Path(there), "right")]
        rig[2].clock_ahead(3600)
        daemons.append(start_munged(rig[2], Path(there), "ahead"))
        down = munged(rig[1], "down")
        assert down.wait() != 0
        assert f"munged does not run here: no socket at {there}/down.socket" in down.output(), down.output()
        first = munged(rig[0], "right")
        first.wait_until(lambda: ports(rig[0]) == [29400])
        ahead = munged(rig[2], "ahead")
        assert ahead.wait() != 0
        assert "the clocks of the two machines are apart (check NTP)" in ahead.output(), ahead.output()
        nodes = [first, munged(rig[1], "right")]
        up(nodes, 2)
        finish(nodes, tmp_path)
        for d in daemons:
            d.signal(15)
            d.wait()


def test_other_users_of_the_same_machine(tmp_path: Path, token: str) -> None:
    """Loopback and the machine's own address are for the job's user."""
    with Rig(2) as rig:
        nodes = [node(h, "node1:29400", tmp_path, token, nnodes="2") for h in rig.hosts]
        up(nodes, 2)
        for port in ports(rig[0]):  # the script is handed over as text: another user cannot read it here
            got = rig[0].run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3",
                              "-c", Path(ATTACKER).read_text(), rig[0].ip4, str(port), "job"])
            assert "stats: b''" in got and "set: b''" in got and "list: b''" in got, got
            mine = rig[0].run([sys.executable, ATTACKER, rig[0].ip4, str(port), "job"])
            assert "list: b''" not in mine, mine  # the job's own user is served
            no_seat(mine)
        assert "belongs to another user of this machine" in nodes[0].output()
        finish(nodes, tmp_path)


@pytest.mark.parametrize("encrypt", [False, True])
def test_whoever_has_a_members_address(tmp_path: Path, token: str, encrypt: bool) -> None:
    """Anybody there may pass for one of its workers, and gets its keys, but not a seat. With --encrypt an address is worth nothing."""
    with Rig(2) as rig:
        nodes = [node(h, "node1:29400", tmp_path, token, *(["--encrypt"] if encrypt else []), nnodes="2") for h in rig.hosts]
        up(nodes, 2)
        for port in ports(rig[0]):
            got = rig[1].run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3",
                              "-c", Path(ATTACKER).read_text(), rig[0].ip4, str(port), "job"])
            answers = dict(line.split(": ", 1) for line in got.splitlines())
            assert ("y<open>" in answers["set"]) == (not encrypt), got
            assert (answers["list"] == "b''") == encrypt, got
            no_seat(got)
        finish(nodes, tmp_path)


def test_the_relay_is_for_the_jobs_own_user(tmp_path: Path, token: str) -> None:
    """With --encrypt, also on a member's machine that serves nothing itself."""
    with Rig(2) as rig:
        nodes = [node(h, "node1:29400", tmp_path, token, "--encrypt", nnodes="2") for h in rig.hosts]
        up(nodes, 2)
        out = rig[1].run(["ss", "-ltnH"])
        relays = [line.split()[3].rsplit(":", 1)[1] for line in out.splitlines() if "127.0.0.1:" in line]
        assert relays, out
        for port in relays:
            got = rig[1].run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3",
                              "-c", Path(ATTACKER).read_text(), "127.0.0.1", port, "job"])
            for line in got.splitlines():
                assert re.search(r": (b''|b\"(ConnectionReset|BrokenPipe))", line), got
            mine = rig[1].run([sys.executable, ATTACKER, "127.0.0.1", port, "job"])
            assert "list: b''" not in mine, mine
            no_seat(mine)
        assert "belongs to another user" in nodes[1].output()
        finish(nodes, tmp_path)


def test_a_job_without_a_secret_says_so_once(tmp_path: Path) -> None:
    with Rig(2) as rig:
        nodes = [node(h, "node1:29400", tmp_path, nnodes="2") for h in rig.hosts]
        up(nodes, 2)
        finish(nodes, tmp_path)
        assert sum(n.output().count("this job has no secret") for n in nodes) == 1


@pytest.mark.parametrize("encrypt", [False, True])
def test_whoever_has_the_token_may_look(tmp_path: Path, token: str, encrypt: bool) -> None:
    """`muster status`, `stacks` and `top` of a store elsewhere, without the run's name; and without the token."""
    with Rig(3) as rig:
        nodes = [node(h, "node1:29400", tmp_path, token, *(["--encrypt"] if encrypt else []), nnodes="2") for h in rig.hosts[:2]]
        up(nodes, 2)
        status = json.loads(rig[2].run([MUSTER, "status", "node1:29400", "--json", token]))
        assert status["job"]["run_id"] == "job" and len(status["nodes"]) == 2, status
        seen = json.loads(rig[2].run([MUSTER, "stacks", "node1:29400/job", "--json", token]))
        assert seen["schema"] == "muster-stacks/1" and "rank" in json.dumps(seen["seen"]), seen
        at = ["tmux", "-L", f"muster-{tmp_path.name}"]
        rig[2].run([*at, "new-session", "-d", "-x", "120", "-y", "30", f"{MUSTER} top node1:29400 {token}; sleep 60"])
        try:
            for keys, shown in (None, "2 nodes, 2 ranks"), ("k", r"ranks? \(\d"):
                if keys:
                    rig[2].run([*at, "send-keys", keys])
                nodes[0].wait_until(lambda: re.search(shown, rig[2].run([*at, "capture-pane", "-p"])) is not None)
        finally:
            rig[2].run([*at, "kill-server"])
        for command in ("status", "stacks", "top"):
            blind = rig[2].start([MUSTER, command, "node1:29400"])
            assert blind.wait() == 1
            assert "the job has a secret: give --token-file=FILE" in blind.output()
            wrong = rig[2].start([MUSTER, command, "node1:29400"], MUSTER_TOKEN="another-token-of-another-job-9876543210")
            assert wrong.wait() == 1
            assert "it holds another secret" in wrong.output()
        finish(nodes, tmp_path)


PROVES = """
import hashlib, hmac, os, socket, struct, sys, time
host, token, run = sys.argv[1], sys.argv[2].encode(), sys.argv[3].encode()
mac = lambda key, data: hmac.new(key, data, hashlib.sha256).digest()
blob = lambda b: struct.pack("<Q", len(b)) + b
say = lambda value: s.sendall(b"\\x0e" + blob(b"/\\x01muster/auth") + blob(value))
s = socket.create_connection((host, 29400))
s.sendall(bytes.fromhex("00cef7853c"))
opens = bytes([1, 1, 0]) + os.urandom(32) + (mac(b"muster auth 1 run", run) if run else bytes(32)) + b"\\4\\0test"
say(opens)
read = s.makefile("rb").read
challenge = read(struct.unpack("<Q", read(8))[0])
say(bytes([1, 3]) + mac(mac(token, b"muster auth 1 key"), b"muster auth 1 client\\0" + opens + challenge) + b"\\0")
s.sendall(b"\\x03" + blob(b"/\\x01muster/stats"))
print(read(struct.unpack("<Q", read(8))[0]), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("run", ["", "job"])
def test_who_looks_on_has_no_workers(tmp_path: Path, token: str, run: str) -> None:
    """Processes on a node's machine count as its workers. Those on a machine from which somebody only looks on do not."""
    with Rig(3) as rig:
        nodes = [node(h, "node1:29400", tmp_path, token, nnodes="2") for h in rig.hosts[:2]]
        up(nodes, 2)
        proven = rig[2].start([sys.executable, "-c", PROVES, rig[0].ip4, TOKEN, run])
        proven.wait_for("requests")
        got = rig[2].run([sys.executable, ATTACKER, rig[0].ip4, "29400", "job"])
        assert ("set: b''" in got) == (run == ""), got
        no_seat(got)
        proven.signal(9)
        proven.wait()
        finish(nodes, tmp_path)


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_store_of_its_own_has_a_secret(tmp_path: Path, token: str, encrypt: bool) -> None:
    with Rig(3) as rig:
        more = ["--encrypt"] if encrypt else []
        store = rig[2].start([MUSTER, "store", "--port=29400", token, *more])
        store.wait_for("listening")
        nodes = [node(h, "node3:29400", tmp_path, token, *more, nnodes="2") for h in rig.hosts[:2]]
        up(nodes, 2)
        none = node(rig[1], "node3:29400", tmp_path, nnodes="2")
        assert none.wait() == 1
        assert "the job has a secret, and this node was given none" in none.output()
        finish(nodes, tmp_path)
        store.signal(15)
        assert store.wait() == 0


def test_programs_on_the_c_interface_have_a_secret(tmp_path: Path, token: str) -> None:
    """`token_file` in the rendezvous' configuration: a group with `muster run`'s store as its host, and a stranger."""
    program = str(Path(MUSTER).parent / "tests/interop/interop_rdzv_node")

    def program_on(host: Host, conf: str) -> Process:
        return host.start(["sh", "-c", f"printf 'next\\nbarrier\\nshutdown\\nquit\\n' | {program} c10d node1:29400 job 2 2 "
                                       f"{host.ip4} '{conf}'"])

    file = token.replace("--token-file", "token_file")
    with Rig(3) as rig:
        nodes = [program_on(h, f"{file},join_timeout=60") for h in rig.hosts[:2]]
        for n in nodes:
            assert n.wait() == 0 and re.search(r"joined 0 \d 2", n.output()) and "passed" in n.output(), n.output()
        first = program_on(rig[0], f"{file},join_timeout=60")
        first.wait_until(lambda: ports(rig[0]) == [29400])
        none = program_on(rig[2], "join_timeout=60")
        none.wait()
        assert "joined" not in none.output() and "was given none" in none.output(), none.output()
        first.signal(9)
        first.wait()
