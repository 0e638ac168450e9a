#!/usr/bin/env python3
"""Records answers of a real etcd as golden bytes: record.py ETCD_BINARY DIRECTORY.

Each file is the HTTP status, X-Etcd-Index (or 0), a newline, and the body as it came.
The unit tests of the codecs read them; they change only when somebody runs this again.
"""
from __future__ import annotations

import base64
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Recorder:
    def __init__(self, port: int, out: Path):
        self.port, self.out = port, out

    def ask(self, method: str, path: str, body: str | None = None, kind: str = "form"):
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        headers = {}
        if body is not None:
            headers["Content-Type"] = (
                "application/json" if kind == "json" else "application/x-www-form-urlencoded"
            )
        conn.request(method, path, body, headers)
        answer = conn.getresponse()
        return answer.status, answer.getheader("X-Etcd-Index", "0"), answer.read()

    def keep(self, name: str, *request, **kw) -> bytes:
        status, index, body = self.ask(*request, **kw)
        (self.out / name).write_bytes(f"{status} {index}\n".encode() + body)
        return body

    def v3(self, name: str, path: str, message: dict) -> dict:
        return json.loads(self.keep(name, "POST", path, json.dumps(message), kind="json"))

    def stream(self, name: str, message: dict, during, lines: int, headers: dict = {}) -> None:
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        conn.request("POST", "/v3/watch", json.dumps(message), headers)
        answer = conn.getresponse()
        got = [answer.readline() for _ in range(lines - 1)]
        during()
        got.append(answer.readline())
        (self.out / name).write_bytes(f"{answer.status} 0\n".encode() + b"".join(got))
        conn.close()


def record_v2(r: Recorder) -> None:
    key = "/v2/keys/torch/elastic/rendezvous/job"
    r.keep("v2-machines", "GET", "/v2/machines")
    r.keep("v2-get-missing", "GET", key)
    body = r.keep("v2-create", "PUT", key, "value=gASV%3D&ttl=7200&prevExist=false")
    index = json.loads(body)["node"]["modifiedIndex"]
    r.keep("v2-create-again", "PUT", key, "value=x&ttl=7200&prevExist=false")
    r.keep("v2-get", "GET", key)
    r.keep("v2-swap", "PUT", key, f"value=gASW&ttl=7200&prevIndex={index}")
    r.keep("v2-swap-lost", "PUT", key, f"value=gASX&ttl=7200&prevIndex={index}")
    r.keep("v2-not-a-dir", "PUT", key + "/below", "value=1")
    r.keep("v2-list", "GET", "/v2/keys/torch/elastic?recursive=true")
    r.keep("v2-not-a-file", "PUT", "/v2/keys/torch/elastic", "value=1")
    r.keep("v2-bad-ttl", "PUT", key, "value=1&ttl=soon")
    r.keep("v2-delete", "DELETE", key + "?prevValue=gASW")
    for i in range(1100):
        r.ask("PUT", "/v2/keys/noise", f"value={i}")
    r.keep("v2-watch-cleared", "GET", key + "?wait=true&waitIndex=2")


def record_v3(r: Recorder) -> None:
    key = b64("/muster/job/state")
    put = {"requestPut": {"key": key, "value": b64("one"), "lease": 0}}
    read = {"requestRange": {"key": key}}
    create = {"compare": [{"key": key, "target": "CREATE", "result": "EQUAL",
                           "create_revision": "0"}], "success": [put], "failure": [read]}
    r.v3("v3-range-missing", "/v3/kv/range", {"key": key})
    first = r.v3("v3-create", "/v3/kv/txn", create)
    r.v3("v3-create-lost", "/v3/kv/txn", create)
    r.v3("v3-range", "/v3/kv/range", {"key": key})
    lease = r.v3("v3-lease-grant", "/v3/lease/grant", {"TTL": "60"})["ID"]
    r.v3("v3-lease-exists", "/v3/lease/grant", {"TTL": "60", "ID": lease})
    r.v3("v3-lease-keepalive", "/v3/lease/keepalive", {"ID": lease})
    r.v3("v3-lease-gone", "/v3/lease/keepalive", {"ID": "77"})
    r.v3("v3-put-no-lease", "/v3/kv/put", {"key": key, "value": "", "lease": "77"})
    put["requestPut"].update(lease=lease, value=b64("two"))
    create["compare"] = [{"key": key, "target": "MOD", "result": "EQUAL",
                          "mod_revision": first["header"]["revision"]}]
    r.v3("v3-swap", "/v3/kv/txn", create)
    both = {"key": b64("/muster/job/"), "range_end": b64("/muster/job0")}
    r.v3("v3-range-lease", "/v3/kv/range", both)
    r.stream("v3-watch", {"create_request": dict(both, start_revision="2")},
             lambda: r.ask("POST", "/v3/lease/revoke", json.dumps({"ID": lease})), 3)
    r.v3("v3-lease-revoke-unknown", "/v3/lease/revoke", {"ID": "77"})
    r.v3("v3-bad-json", "/v3/kv/range", {"key": "***"})
    r.v3("v3-too-large", "/v3/kv/put", {"key": key, "value": "A" * 2200000})
    r.v3("v3-delete", "/v3/kv/txn", {"success": [{"requestDeleteRange": both}]})
    r.v3("v3-auth-off", "/v3/auth/authenticate", {"name": "u", "password": "p"})
    now = r.v3("v3-header", "/v3/kv/range", {"key": key})["header"]["revision"]
    r.v3("v3-compact", "/v3/kv/compaction", {"revision": now})
    r.stream("v3-watch-compacted", {"create_request": dict(both, start_revision="2")},
             lambda: None, 2)
    for n, path, message in [
        ("user", "user/add", {"name": "root", "password": "pw"}),
        ("role", "role/add", {"name": "root"}),
        ("grant", "user/grant", {"user": "root", "role": "root"}),
        ("user", "user/add", {"name": "few", "password": "pw"}),
        ("enable", "enable", {}),
    ]:
        r.ask("POST", "/v3/auth/" + path, json.dumps(message))
    r.v3("v3-auth-none", "/v3/kv/range", {"key": key})
    r.v3("v3-auth-wrong", "/v3/auth/authenticate", {"name": "root", "password": "x"})
    r.v3("v3-auth", "/v3/auth/authenticate", {"name": "root", "password": "pw"})
    token = json.loads(r.ask("POST", "/v3/auth/authenticate",
                             json.dumps({"name": "few", "password": "pw"}))[2])["token"]
    for name, value in (("v3-auth-denied", token), ("v3-auth-stale", "nonsense.1")):
        conn = http.client.HTTPConnection("127.0.0.1", r.port, timeout=10)
        conn.request("POST", "/v3/kv/range", json.dumps({"key": key}), {"Authorization": value})
        answer = conn.getresponse()
        (r.out / name).write_bytes(f"{answer.status} 0\n".encode() + answer.read())
    for name, headers in (("v3-watch-denied", {"Authorization": token}),
                          ("v3-watch-none", {}),
                          ("v3-watch-stale", {"Authorization": "nonsense.1"})):
        r.stream(name, {"create_request": both}, lambda: None, 1, headers)


def main() -> None:
    binary, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for enable_v2 in ("true", "false"):
        port, peer = free_port(), free_port()
        url = f"http://127.0.0.1:{port}"
        with tempfile.TemporaryDirectory() as data:
            server = subprocess.Popen(
                [binary, f"--enable-v2={enable_v2}", "--data-dir", data,
                 "--listen-client-urls", url, "--advertise-client-urls", url,
                 "--listen-peer-urls", f"http://127.0.0.1:{peer}"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                r = Recorder(port, out)
                while True:
                    try:
                        if r.ask("GET", "/health")[0] == 200:
                            break
                    except OSError:
                        pass
                    time.sleep(0.1)
                if enable_v2 == "true":
                    record_v2(r)
                    record_v3(r)
                else:
                    r.keep("v2-not-enabled", "GET", "/v2/keys/torch")
            finally:
                server.terminate()
                server.wait()


main()
