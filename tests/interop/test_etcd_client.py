"""The etcd client against real servers: failover, watches, leases, users, TLS, and the
message for each way in which it can go wrong."""
from __future__ import annotations

import base64
import http.client
import http.server
import json
import os
import queue
import re
import signal
import subprocess
import threading

import pytest
from etcd_nodes import Node
from etcd_server import BUILD, TOOL, Certificates, Cluster, Etcd, b64, free_ports, tool


class Lines:
    """A tool that keeps running; its lines as they come."""

    def __init__(self, *args: str):
        self.proc = subprocess.Popen([TOOL, *args], stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.proc.stdout:
            self.lines.put(line.strip())

    def next(self, seconds: float = 40) -> str:
        return self.lines.get(timeout=seconds)

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_) -> None:
        self.proc.kill()
        self.proc.wait()
        self.proc.stderr.close()


@pytest.fixture(scope="module", params=["3.4", "3.5"])
def etcd(request, tmp_path_factory):
    with Etcd(tmp_path_factory.mktemp("etcd"), version=request.param) as server:
        yield server


def test_put_and_get(etcd):
    assert tool(etcd.endpoint, "", "put", "/a", "one") == (0, "", "")
    assert tool(etcd.endpoint, "", "get", "/a") == (0, "one", "")
    assert tool(etcd.endpoint, "", "get", "/none") == (0, "(none)", "")


def test_next_endpoint_when_one_refuses(etcd):
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    assert tool(f"{dead},{etcd.endpoint}", "", "get", "/none") == (0, "(none)", "")


def test_watch_and_lease(etcd):
    with Lines(etcd.endpoint, "", "watch", "/w") as watch:
        assert watch.next() == "READY"
        tool(etcd.endpoint, "", "put", "/w", "one")
        assert watch.next() == "PUT one"
        with Lines(etcd.endpoint, "", "lease", "/w", "2") as lease:
            assert lease.next() == "READY"
            assert watch.next() == "PUT 2"
        # Its owner was killed: the key goes by itself.
        assert watch.next() == "DELETE"


def test_watch_leaves_a_member_that_falls_silent(tmp_path):
    """Its stream shows nothing for 20 s; the renewals of a lease at the same member fail long before."""
    with Cluster(tmp_path) as cluster:
        silent, *others = cluster.members
        with Lines(cluster.endpoints, "", "watch", "/w", "6") as watch:
            assert watch.next() == "READY"
            tool(others[0].endpoint, "", "put", "/w", "one")
            assert watch.next() == "PUT one"
            silent.proc.send_signal(signal.SIGSTOP)
            try:
                tool(others[0].endpoint, "timeout_ms=20000", "put", "/w", "two")
                assert watch.next(15) == "PUT two"
            finally:
                silent.proc.send_signal(signal.SIGCONT)


def test_watch_survives_a_restart_and_a_compaction(tmp_path):
    with Etcd(tmp_path) as server:
        with Lines(server.endpoint, "", "watch", "/w") as watch:
            assert watch.next() == "READY"
            tool(server.endpoint, "", "put", "/w", "one")
            assert watch.next() == "PUT one"
            server.kill()
            server.start().wait_up()
            tool(server.endpoint, "", "put", "/w", "two")
            assert watch.next() == "PUT two"
            # While it is stopped, what it has not seen is compacted away.
            watch.proc.send_signal(signal.SIGSTOP)
            server.kill()
            server.start().wait_up()
            for value in ("three", "four", "five"):
                status, got = server.v3("/v3/kv/put", {"key": b64("/w"), "value": b64(value)})
            server.v3("/v3/kv/compaction", {"revision": got["header"]["revision"]})
            watch.proc.send_signal(signal.SIGCONT)
            assert watch.next() == "RESYNC"


def test_revision_going_back_is_noticed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Etcd(tmp_path / "a") as server:
        for i in range(20):
            server.v3("/v3/kv/put", {"key": b64("/x"), "value": b64(str(i))})
        with Lines(server.endpoint, "", "watch", "/x") as watch:
            assert watch.next() == "READY"
            tool(server.endpoint, "", "put", "/x", "new")
            assert watch.next() == "PUT new"
            server.kill()
            # The same address, but an older database: an empty one.
            server.argv[server.argv.index("--data-dir") + 1] = str(tmp_path / "b" / "d")
            server.start().wait_up()
            assert watch.next() == "RESYNC"


def test_cluster_goes_on_without_its_leader(tmp_path):
    with Cluster(tmp_path) as cluster:
        leader = cluster.leader()
        first = [leader.endpoint] + [m.endpoint for m in cluster.members if m is not leader]
        endpoints = ",".join(first)
        tool(endpoints, "", "put", "/k", "one")
        leader.kill()
        assert tool(endpoints, "timeout_ms=20000", "get", "/k") == (0, "one", "")
        leader.start().wait_up()
        stopped = cluster.leader()
        stopped.signal(signal.SIGSTOP)
        order = ",".join([stopped.endpoint] +
                         [m.endpoint for m in cluster.members if m is not stopped])
        assert tool(order, "timeout_ms=20000", "put", "/k", "two") == (0, "", "")
        assert tool(order, "timeout_ms=20000", "get", "/k") == (0, "two", "")
        stopped.signal(signal.SIGCONT)


def test_no_quorum_is_said(tmp_path):
    with Cluster(tmp_path) as cluster:
        cluster.members[0].kill()
        cluster.members[1].kill()
        code, _, text = tool(cluster.members[2].endpoint, "timeout_ms=10000", "put", "/k", "v")
        assert code == 1
        assert cluster.members[2].endpoint in text and "/k" in text
        assert "quorum" in text or "no answer in time" in text


def test_users(tmp_path):
    with Etcd(tmp_path) as server:
        for path, message in [
            ("user/add", {"name": "root", "password": "secret"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "guest", "password": "guest"}),
            ("enable", {}),
        ]:
            assert server.v3("/v3/auth/" + path, message)[0] == 200
        (tmp_path / "password").write_text("secret\n")
        e = server.endpoint
        assert tool(e, f"user=root,password_file={tmp_path}/password", "put", "/a", "x") == (0, "", "")
        assert tool(e, "user=root", "get", "/a", env={"MUSTER_ETCD_PASSWORD": "secret"}) == (0, "x", "")
        for conf, words in [
            ("", "asks for a user"),
            ("user=root,password=wrong", "Check user and password"),
            ("user=guest,password=guest", "permission denied"),
            (f"user=root,password_file={tmp_path}/nothing", "No such file"),
        ]:
            code, _, text = tool(e, conf, "get", "/a")
            assert code == 1 and words in text, text


def until_told(server: Etcd, conf: str, watch: Lines, value: str) -> None:
    """Writes until the watch tells of it: it gets a token first, and may begin after a write."""
    for _ in range(60):
        assert tool(server.endpoint, conf, "put", "/w", value)[0] == 0
        try:
            while watch.next(2) != f"PUT {value}":
                pass
            return
        except queue.Empty:
            pass
    raise AssertionError(f"the watch has not told of {value}")


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_watch_survives_a_token_that_is_void(tmp_path, version):
    """The server calls a watch that it refuses "created", and nobody but the watch is there to get
    another token."""
    conf = "user=root,password=secret"
    with Etcd(tmp_path, version=version) as server:
        for path, message in [
            ("user/add", {"name": "root", "password": "secret"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("enable", {}),
        ]:
            assert server.v3("/v3/auth/" + path, message)[0] == 200
        with Lines(server.endpoint, conf, "watch", "/w") as watch:
            assert watch.next() == "READY"
            until_told(server, conf, watch, "one")
            # A password that is changed, be it to the same, ends all tokens of its user.
            root = {"name": "root", "password": "secret"}
            token = server.v3("/v3/auth/authenticate", root)[1]["token"]
            assert server.v3("/v3/auth/user/changepw", root, token=token)[0] == 200
            server.kill()
            server.start().wait_up()
            until_told(server, conf, watch, "two")


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_signed_tokens_are_void_when_users_change(tmp_path, version):
    """With --auth-token=jwt any change of users or roles ends the tokens of all users."""
    for args in (["genrsa", "-out", "private", "2048"],
                 ["rsa", "-in", "private", "-pubout", "-out", "public"]):
        subprocess.run(["openssl", *args], cwd=tmp_path, check=True, capture_output=True)
    tokens = "jwt,pub-key=public,priv-key=private,sign-method=RS256,ttl=10m"
    root = {"name": "root", "password": "secret"}
    conf = "user=root,password=secret,timeout_ms=20000"
    with Etcd(tmp_path, version=version, extra=["--auth-token", tokens]) as server:
        for path, message in [
            ("user/add", root),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("enable", {}),
        ]:
            assert server.v3("/v3/auth/" + path, message)[0] == 200
        with Lines(server.endpoint, conf, "watch", "/w") as watch, \
                subprocess.Popen([TOOL, server.endpoint, conf, "store", "/s/"], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE) as store:
            assert watch.next() == "READY"
            until_told(server, conf, watch, "one")
            for request in ("set a 1", "get a"):
                store.stdin.write(request + "\n")
                store.stdin.flush()
                assert "MUSTER_" not in store.stdout.readline()
                token = server.v3("/v3/auth/authenticate", root)[1]["token"]
                other = {"name": f"after {request}", "password": "x"}
                assert server.v3("/v3/auth/user/add", other, token=token)[0] == 200
            store.stdin.write("get a\n")
            store.stdin.close()
            assert store.stdout.readline() == "1\n"
            # A stream that is there goes on; the next one needs a new token.
            server.kill()
            server.start().wait_up()
            until_told(server, conf, watch, "two")


def v2_auth(server: Etcd, method: str, path: str, message: dict, user: str = "") -> None:
    conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Content-Type": "application/json"}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    conn.request(method, "/v2/auth/" + path, json.dumps(message), headers)
    answer = conn.getresponse()
    assert answer.status in (200, 201), answer.read()
    conn.close()


def test_users_of_v2(tmp_path):
    """v2 knows no tokens: each request brings name and password along."""
    everything = {"kv": {"read": ["/*"], "write": ["/*"]}}
    with Etcd(tmp_path) as server:
        v2_auth(server, "PUT", "users/root", {"user": "root", "password": "secret"})
        v2_auth(server, "PUT", "enable", {})
        v2_auth(server, "PUT", "roles/guest", {"role": "guest", "revoke": everything}, "root:secret")
        for backend in ("etcd-v2", "etcd"):
            # One node: v2 hashes the password anew for each request, at a tenth of a second.
            node = Node(backend, server.endpoint, f"users-{backend}", (1, 1),
                        "last_call_timeout=1,user=root,password=secret")
            try:
                assert node("next", seconds=120).text.startswith("joined ")
            finally:
                node.kill()
            for conf in ("user=root,password=wrong", "last_call_timeout=1"):
                node = Node(backend, server.endpoint, "none", (1, 1), conf)
                try:
                    text = node("next", seconds=120).text
                finally:
                    node.kill()
                assert text.startswith("failed MUSTER_EACCES"), text
                assert server.endpoint in text and "key /torch" in text, text
                assert "Give a user" in text, text


def test_user_where_there_are_none(etcd):
    code, _, text = tool(etcd.endpoint, "user=root,password=x", "get", "/a")
    assert code == 1 and "not enabled" in text and "Leave user" in text


def test_without_v2(tmp_path):
    with Etcd(tmp_path, v2=False) as server:
        code, _, text = tool(server.endpoint, "", "v2get", "/a")
        assert code == 1
        assert "--enable-v2" in text and "etcd-v3" in text and server.endpoint in text
        assert "/a" in text


def test_full_disk(tmp_path):
    with Etcd(tmp_path, extra=["--quota-backend-bytes", "100000"]) as server:
        value = "x" * 60000
        # The server looks at its size as of the last commit, ten times a second.
        for i in range(300):
            status, got = server.v3("/v3/kv/put", {"key": b64(f"/{i}"), "value": b64(value)})
            if status != 200:
                break
        code, _, text = tool(server.endpoint, "", "put", "/a", "x")
        assert code == 1 and "NOSPACE" in text and "alarm disarm" in text, text


class Page(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.server.page
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body) + self.server.missing))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("status,page,missing,words", [
    (200, b"<html><title>Sign in</title></html>", 0, "a web page came back"),
    (403, b"<!DOCTYPE html><p>Forbidden", 0, "a web page came back"),
    (200, b'{"header":{"revision":"3"},"kvs":[{"ke', 0, "not whole JSON"),
    (200, b'{"header":{"revision":"3"},"kvs":[{"ke', 9, "broke before"),
    (200, b'{"header":{"revision":"-3"}}', 0, "negative"),
    (200, b"hello", 0, "Check host and port"),
])
def test_strangers(status, page, missing, words):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.page, server.status, server.missing = page, status, missing
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        code, _, text = tool(f"127.0.0.1:{server.server_port}", "timeout_ms=700", "get", "/a")
        assert code == 1 and words in text, text
        assert f"127.0.0.1:{server.server_port}" in text and "/a" in text
    finally:
        server.shutdown()
        server.server_close()


def test_page_instead_of_v2():
    """Its words are not taken for the other members of the cluster."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.page = b"<!DOCTYPE html>\n<html><body><h1>Welcome, you</h1> http://localhost:1</body></html>"
    server.status, server.missing = 200, 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    node = Node("etcd-v2", f"127.0.0.1:{server.server_port}", "page", (1, 1), "read_timeout=20")
    try:
        text = node("next").text
        assert text.startswith("failed MUSTER_ECONN") and "a web page came back" in text, text
        assert f"http://127.0.0.1:{server.server_port}, key" in text, text
    finally:
        node.kill()
        server.shutdown()
        server.server_close()


def test_without_libcurl(tmp_path):
    """It is loaded when somebody wants etcd; that it cannot be is told, and what to install."""
    program = BUILD / "muster"
    needs = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    if "libcurl" in needs:
        pytest.skip("this build is linked with it")
    (tmp_path / "libcurl.so.4").touch()
    done = subprocess.run([program, "run", "--nnodes=1", "--rdzv-backend=etcd-v3",
                           "--rdzv-endpoint=127.0.0.1:1", "none.py"], capture_output=True, text=True,
                          env=dict(os.environ, LD_LIBRARY_PATH=str(tmp_path)), timeout=60)
    assert done.returncode != 0
    assert "libcurl, which cannot be loaded" in done.stderr and "Debian: libcurl4" in done.stderr


def test_nobody_there():
    port = free_ports(1)[0]
    code, _, text = tool(f"127.0.0.1:{port}", "timeout_ms=500", "get", "/a")
    assert code == 1 and "connection refused" in text and f":{port}" in text
    code, _, text = tool("no-such-host.invalid", "timeout_ms=1500", "get", "/a")
    assert code == 1 and "no-such-host.invalid" in text


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    d = tmp_path_factory.mktemp("tls")
    ours, theirs = Certificates(d), Certificates(d, "other")
    certs = {
        "good": ours.make("good", "IP:127.0.0.1"),
        "name": ours.make("name", "DNS:elsewhere.example"),
        "expired": ours.make("expired", "IP:127.0.0.1", expired=True),
        "client": ours.make("client", "DNS:client"),
        "stranger": theirs.make("stranger", "DNS:client"),
    }
    servers = {}
    try:
        for name in ("good", "name", "expired"):
            (d / f"s-{name}").mkdir()
            crt, key = certs[name]
            servers[name] = Etcd(d / f"s-{name}", scheme="https", extra=[
                "--cert-file", crt, "--key-file", key]).start()
        (d / "s-mutual").mkdir()
        crt, key = certs["good"]
        servers["mutual"] = Etcd(d / "s-mutual", scheme="https", extra=[
            "--cert-file", crt, "--key-file", key, "--client-cert-auth",
            "--trusted-ca-file", str(ours.ca)]).start()
        yield d, certs, servers, ours, theirs
    finally:
        for s in servers.values():
            s.kill()


def test_tls(tls):
    d, certs, servers, ours, theirs = tls
    https = f"protocol=https,timeout_ms=20000,ca_cert={ours.ca}"
    assert tool(servers["good"].endpoint, https, "put", "/a", "safe") == (0, "", "")
    assert tool(servers["good"].endpoint, https, "get", "/a") == (0, "safe", "")
    crt, key = certs["client"]
    mutual = f"{https},ssl_cert={crt},ssl_cert_key={key}"
    assert tool(servers["mutual"].endpoint, mutual, "get", "/a") == (0, "(none)", "")
    both = d / "both.pem"
    both.write_text(open(crt).read() + open(key).read())
    assert tool(servers["mutual"].endpoint, f"{https},ssl_cert={both}", "get", "/a") == (0, "(none)", "")


def test_tls_messages(tls):
    d, certs, servers, ours, theirs = tls
    https = "protocol=https,timeout_ms=20000"
    good, stranger = certs["client"], certs["stranger"]
    rows = [
        ("good", f"ca_cert={theirs.ca}", "not signed by"),
        ("good", "", "not signed by a CA of this system"),
        ("good", f"ca_cert={d}/absent.crt", "cannot be read"),
        ("name", f"ca_cert={ours.ca}", "for another name"),
        ("expired", f"ca_cert={ours.ca}", "has expired"),
        ("mutual", f"ca_cert={ours.ca}", "asks for a client certificate"),
        ("mutual", f"ca_cert={ours.ca},ssl_cert={good[0]}", "cannot be used"),
        ("mutual", f"ca_cert={ours.ca},ssl_cert={good[0]},ssl_cert_key={stranger[1]}",
         "must belong"),
        ("mutual", f"ca_cert={ours.ca},ssl_cert={stranger[0]},ssl_cert_key={stranger[1]}",
         "does not take ours|refuses our client certificate"),  # by the alert of this etcd's Go
    ]
    seen = {}
    for name, conf, words in rows:
        code, _, text = tool(servers[name].endpoint, ",".join(filter(None, [https, conf])), "get", "/a")
        assert code == 1 and re.search(words, text), (name, conf, text)
        assert servers[name].endpoint in text and "/a" in text
        seen[words] = text
    # http where there is https, and the other way round.
    code, _, text = tool(servers["good"].endpoint, "timeout_ms=2000", "get", "/a")
    assert code == 1 and "protocol=https" in text, text
