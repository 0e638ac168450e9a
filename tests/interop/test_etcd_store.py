"""The store in etcd: ours beside torch's EtcdStore in one directory, and ours on v3."""
from __future__ import annotations

import datetime
import http.client
import http.server
import subprocess
import threading

import pytest
from etcd_server import TOOL, Etcd


class Store:
    """Ours, by hand: a line in, a line out."""

    def __init__(self, endpoint: str, directory: str, v2: bool, timeout_ms: int = 20000):
        self.proc = subprocess.Popen(
            [TOOL, endpoint, f"timeout_ms={timeout_ms}", "v2store" if v2 else "store", directory],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *words: object) -> str:
        self.send(*words)
        return self.answer()

    def send(self, *words: object) -> None:
        self.proc.stdin.write(" ".join(map(str, words)) + "\n")
        self.proc.stdin.flush()

    def answer(self) -> str:
        return self.proc.stdout.readline().strip()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_) -> None:
        self.proc.stdin.close()
        assert self.proc.wait(timeout=30) == 0
        self.proc.stdout.close()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def theirs(etcd, request):
    import etcd as python_etcd
    from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

    client = python_etcd.Client(host="127.0.0.1", port=etcd.port, allow_reconnect=True)
    return EtcdStore(client, f"/torch/elastic/{request.node.name}",
                     timeout=datetime.timedelta(seconds=20))


@pytest.fixture
def ours(etcd, request):
    with Store(etcd.endpoint, f"/torch/elastic/{request.node.name}/", v2=True) as store:
        yield store


def test_one_store(ours, theirs):
    assert ours("set", "k", "v") == "0"
    assert theirs.get("k") == b"v"
    theirs.set("t", "from torch")
    assert ours("get", "t") == "from torch"
    assert ours("check", "t") == "0"
    assert ours("check", "absent") == "1"
    assert theirs.check(["k", "t"]) and not theirs.check(["absent"])


def test_counting_together(ours, theirs):
    assert theirs.add("n", 2) == 2
    assert ours("add", "n", 3) == "5"
    assert theirs.add("n", -1) == 4
    assert ours("add", "fresh", 7) == "7"
    assert theirs.get("fresh") == b"7"


def test_each_waits_for_the_other(ours, theirs):
    ours.send("get", "later")
    theirs.set("later", "now")
    assert ours.answer() == "now"
    got = []
    thread = threading.Thread(target=lambda: got.append(theirs.get("reply")))
    thread.start()
    assert ours("set", "reply", "here") == "0"
    thread.join(timeout=30)
    assert got == [b"here"]
    ours.send("wait", "third")
    theirs.set("third", "x")
    assert ours.answer() == "0"


def test_adding_at_once_loses_nothing(etcd, theirs, request):
    directory = f"/torch/elastic/{request.node.name}/"
    stores = [Store(etcd.endpoint, directory, v2=True) for _ in range(4)]
    for s in stores:
        for _ in range(25):
            s.send("add", "n", 1)
    for _ in range(10):
        theirs.add("n", 1)
    seen = [int(s.answer()) for s in stores for _ in range(25)]
    for s in stores:
        with s:
            pass
    assert theirs.add("n", 0) == 110
    assert len(set(seen)) == 100  # nobody got a number that another got


@pytest.mark.parametrize("v2", [True, False])
def test_what_torch_lacks(etcd, v2):
    with Store(etcd.endpoint, f"/lacks{v2}/", v2) as s:
        assert s("cas", "c", "-", "one") == "one"  # nothing there, nothing expected
        assert s("cas", "c", "two", "three") == "one"
        assert s("cas", "c", "one", "two") == "two"
        assert s("cas", "absent", "x", "y") == "x"  # as c10d does: nothing is stored
        assert s("check", "absent") == "1"
        assert s("append", "c", "+") == "0"
        assert s("get", "c") == "two+"
        assert s("count") == "1"
        assert s("delete", "c") == "1"
        assert s("delete", "c") == "0"
        assert s("count") == "0"
        assert s("set", "empty", "-") == "0"
        assert s("get", "empty") == ""
        assert s("set", "text", "abc") == "0"
        assert "is not a number" in s("add", "text", 1)


@pytest.mark.parametrize("v2", [True, False])
def test_a_wait_that_is_in_vain(etcd, v2):
    with Store(etcd.endpoint, f"/vain{v2}/", v2, timeout_ms=700) as s:
        assert "Key nothing not found in EtcdStore" in s("get", "nothing")
        assert "Timeout while waiting for keys in EtcdStore" in s("wait", "nothing")


class NoLongPolls(http.server.BaseHTTPRequestHandler):
    """In front of an etcd: serves all but waits, which it counts."""

    def do_GET(self):
        if "wait=true" in self.path:
            self.server.waits += 1
            self.close_connection = True
            if self.server.says:
                self.send_error(self.server.says)
            return
        conn = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=60)
        conn.request("GET", self.path)
        got = conn.getresponse()
        body = got.read()
        conn.close()
        self.send_response(got.status)
        for name in ("Content-Type", "X-Etcd-Index"):
            self.send_header(name, got.headers[name])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("says", [0, 403])
def test_a_wait_that_breaks_is_not_repeated_at_once(etcd, says):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoLongPolls) as front:
        front.upstream, front.says, front.waits = etcd.port, says, 0
        threading.Thread(target=front.serve_forever, daemon=True).start()
        with Store(f"127.0.0.1:{front.server_port}", "/slow/", v2=True, timeout_ms=2000) as store:
            assert store("wait", "never").startswith("MUSTER_ETIMEDOUT")
        front.shutdown()
        assert 1 <= front.waits <= 10


def test_v3_waits_across_a_restart(tmp_path):
    with Etcd(tmp_path) as server:
        with Store(server.endpoint, "/r/", v2=False, timeout_ms=60000) as s, \
                Store(server.endpoint, "/r/", v2=False, timeout_ms=60000) as t:
            s.send("get", "k")
            t("set", "other", "1")
            server.kill()
            server.start().wait_up()
            assert t("set", "k", "v") == "0"
            assert s.answer() == "v"
