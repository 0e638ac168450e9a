"""Several hosts on one machine: network, host name and /etc of their own, one switch.

Every host is a network, UTS and mount namespace held by a sleeping process, joined by a
veth pair to a bridge in a namespace of its own, so nothing of it is seen outside. No names
are left behind: when the holders die, it is all gone.

    with Rig(3) as rig:
        server = rig[0].start(["build/muster", "store", "--port", "29400"])
        rig[1].run(["ping", "-c1", rig[0].ip4])
        rig.part([rig[0]], [rig[1], rig[2]])
"""
from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/interop"))
from patience import clock  # noqa: E402

PYTHON = str(ROOT / "build/venv/bin/python")
MUSTER = str(ROOT / os.environ.get("MUSTER_BUILD", "build") / "muster")
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _sh(*argv: str) -> str:
    done = subprocess.run(argv, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


class Process:
    """A command on a host, its output collected in a file."""

    def __init__(self, host: Host, argv: Sequence[str], env: dict[str, str]) -> None:
        self.host, self.argv = host, list(argv)
        self._out: IO[bytes] = tempfile.TemporaryFile()
        self.popen = subprocess.Popen(
            [*host.enter, *argv], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
            stdout=self._out, stderr=subprocess.STDOUT, preexec_fn=_die_with_parent)
        self.pid = self.popen.pid  # nsenter executes the command in its own place
        self.started = time.monotonic()
        while self.popen.poll() is None and self._net() != host.net:
            time.sleep(0.002)  # until it is where it belongs, so that processes() sees it

    def _net(self) -> str:
        try:
            return os.readlink(f"/proc/{self.pid}/ns/net")
        except OSError:
            return ""

    def output(self) -> str:
        return os.pread(self._out.fileno(), 1 << 24, 0).decode(errors="replace")

    def wait_for(self, text: str, timeout: float = 60) -> str:
        """The output, as soon as text is in it."""
        deadline = clock() + timeout
        while True:
            ended = self.popen.poll() is not None  # before reading: nothing comes after
            out = self.output()
            if text in out:
                return out
            if ended or clock() > deadline:
                why = f"ended with {self.popen.returncode}" if ended else "still runs"
                raise AssertionError(f"{self.argv} on {self.host.name} {why} and never "
                                     f"said {text!r}; it said:\n{out}")
            time.sleep(0.02)

    def wait_for_match(self, pattern: str, count: int = 1, timeout: float = 60) -> str:
        """The output, as soon as the pattern is in it so many times."""
        self.wait_until(lambda: len(re.findall(pattern, self.output())) >= count
                        or self.popen.poll() is not None, timeout)
        out = self.output()
        assert len(re.findall(pattern, out)) >= count, (
            f"{self.argv} on {self.host.name} has not said {pattern!r} {count} times:\n{out}")
        return out

    def wait_until(self, done: Callable[[], bool], timeout: float = 60) -> None:
        deadline = clock() + timeout
        while not done() and clock() < deadline:
            time.sleep(0.02)
        assert done(), f"{self.host.name}: not within {timeout} s; it said:\n{self.output()}"

    def wait(self, timeout: float = 120) -> int:
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.argv} on {self.host.name} still runs after "
                                 f"{timeout} s; it said:\n{self.output()}") from None

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)


class Host:
    def __init__(self, rig: Rig, index: int) -> None:
        self.rig, self.index, self.name = rig, index, f"node{index + 1}"
        self.ip4, self.ip6 = f"10.77.0.{index + 1}", f"fd77::{index + 1}"
        self.port = f"v{index + 1}"  # the switch's end of our cable
        self.env: dict[str, str] = {}
        self.etc = rig.dir / self.name
        self.etc.mkdir()
        self._holder = rig.hold("--net", "--uts", "--mount")
        self.enter = ["nsenter", "-t", str(self._holder.pid), "-n", "-u", "-m", "--"]
        self.net = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        self.run(["hostname", self.name])
        self.run(["ip", "link", "set", "lo", "up"])
        rig.switch("ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0",
                   "netns", str(self._holder.pid))
        rig.switch("ip", "link", "set", self.port, "master", "br0", "up")
        self._plug_in()
        for name in ("hosts", "resolv.conf"):
            (self.etc / name).write_text("")
            self.run(["mount", "--bind", str(self.etc / name), f"/etc/{name}"])

    def _plug_in(self) -> None:
        if self.rig.ipv4:
            self.run(["ip", "addr", "add", f"{self.ip4}/24", "dev", "eth0"])
        if self.rig.ipv6:
            self.run(["ip", "addr", "add", f"{self.ip6}/64", "dev", "eth0", "nodad"])
        self.run(["ip", "link", "set", "eth0", "up"])

    @property
    def ip(self) -> str:
        return self.ip4 if self.rig.ipv4 else self.ip6

    def hosts_file(self, names: dict[str, str]) -> None:
        """What names this host knows: name -> address."""
        own = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
        (self.etc / "hosts").write_text(
            own + "".join(f"{address} {name}\n" for name, address in names.items()))

    def dead_dns(self) -> None:
        """A name server that swallows every question."""
        (self.etc / "resolv.conf").write_text("nameserver 10.77.0.254\noptions timeout:30 attempts:5\n")
        self.run(["ip", "neigh", "replace", "10.77.0.254", "lladdr", "02:00:00:00:00:fe",
                  "dev", "eth0"])

    def clock_ahead(self, seconds: int) -> None:
        self.env |= {"LD_PRELOAD": str(self.rig.clock()), "CLOCK_AHEAD": str(seconds)}

    def bad_cable(self, delay_ms: float = 0, jitter_ms: float = 0, loss: float = 0,
                  pcap: Path | None = None) -> None:
        """A cable that delays each frame, each way, and loses so many in a hundred. What it
        carries is kept in the file PCAP."""
        self.run(["ip", "link", "del", "eth0"])
        self.rig.add_cable(self, [
            PYTHON, str(Path(__file__).with_name("cable.py")), str(self._holder.pid),
            str(self.rig.switch_pid), self.port, str(delay_ms), str(jitter_ms), str(loss),
            str(self.index), *([str(pcap)] if pcap else [])])
        self.rig.switch("ip", "link", "set", self.port, "master", "br0", "up")
        self._plug_in()

    def mtu(self, size: int) -> None:
        """The switch's end drops longer frames, and tells nobody."""
        self.rig.switch("ip", "link", "set", self.port, "mtu", str(size))

    def link(self, up: bool) -> None:
        self.rig.switch("ip", "link", "set", self.port, "up" if up else "down")

    def start(self, argv: Sequence[str], **env: str) -> Process:
        return Process(self, argv, os.environ | self.env | env)

    def run(self, argv: Sequence[str], **env: str) -> str:
        done = subprocess.run([*self.enter, *argv], cwd=ROOT, env=os.environ | self.env | env,
                              text=True, capture_output=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(argv)}: {done.stdout}{done.stderr}")
        return done.stdout

    def processes(self) -> dict[int, str]:
        """Every process on this host but the holder: pid -> command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "ns/net") == self.net:
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # gone meanwhile
        found.pop(self._holder.pid, None)
        return {pid: text for pid, text in found.items() if text}  # zombies have none

    def signal_all(self, number: int) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def power_off(self) -> None:
        """The whole host, at once: no goodbye on the wire, then nothing runs."""
        self.link(up=False)
        self.signal_all(signal.SIGKILL)


class Rig:
    def __init__(self, count: int, ipv4: bool = True, ipv6: bool = True) -> None:
        if os.geteuid():
            raise RuntimeError("the rig of several hosts needs root: network namespaces, "
                               "bridges and mounts (run the tests as root or with sudo)")
        self.ipv4, self.ipv6 = ipv4, ipv6
        self.dir = Path(tempfile.mkdtemp(prefix="rig-"))
        self.hosts: list[Host] = []
        self._holders: list[subprocess.Popen[bytes]] = []
        self._switch: subprocess.Popen[bytes]
        try:
            self._switch = self.hold("--net")
            self.switch("ip", "link", "add", "br0", "type", "bridge")
            self.switch("ip", "link", "set", "br0", "up")
            for index in range(count):
                self.hosts.append(Host(self, index))
            for host in self.hosts:
                host.hosts_file({other.name: other.ip for other in self.hosts})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def hold(self, *namespaces: str) -> subprocess.Popen[bytes]:
        outer = os.readlink("/proc/self/ns/net")
        holder = subprocess.Popen(
            ["unshare", *namespaces, "sleep", "infinity"], stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent)
        self._holders.append(holder)
        while not (os.readlink(f"/proc/{holder.pid}/ns/net") != outer
                   and Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n"):
            if holder.poll() is not None:
                raise RuntimeError("unshare failed: are namespaces allowed here?")
            time.sleep(0.002)
        return holder

    @property
    def switch_pid(self) -> int:
        return self._switch.pid

    def add_cable(self, host: Host, argv: list[str]) -> None:
        cable = subprocess.Popen(argv, stdout=subprocess.PIPE, preexec_fn=_die_with_parent)
        self._holders.append(cable)
        assert cable.stdout
        if cable.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the cable of {host.name} does not work: is there a "
                               "/dev/net/tun?")

    def switch(self, *argv: str) -> str:
        return _sh("nsenter", "-t", str(self._switch.pid), "-n", "--", *argv)

    def part(self, *groups: Sequence[Host]) -> None:
        """Hosts of different groups no longer reach each other; nobody is told."""
        for number, group in enumerate(groups):
            bridge = f"br{number}"
            if number and bridge not in self.switch("ip", "-br", "link"):
                self.switch("ip", "link", "add", bridge, "type", "bridge")
                self.switch("ip", "link", "set", bridge, "up")
            for host in group:
                self.switch("ip", "link", "set", host.port, "master", bridge)

    def heal(self) -> None:
        self.part(self.hosts)

    def clock(self) -> Path:
        library = self.dir / "clock.so"
        if not library.exists():
            _sh("cc", "-shared", "-fPIC", "-O1", "-o", str(library),
                str(Path(__file__).with_name("clock.c")), "-ldl")
        return library

    def close(self) -> None:
        for host in self.hosts:
            host.signal_all(signal.SIGKILL)
        for holder in self._holders:
            holder.kill()
            holder.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def start_munged(host: Host, where: Path, name: str = "munge") -> Process:
    """munged on a host, listening at WHERE/NAME.socket; those that share WHERE have one key."""
    key = where / "munge.key"
    if not key.exists():
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
    files = [f"--{kind}-file={where}/{name}.{kind}" for kind in ("pid", "log", "seed")]
    daemon = host.start(["munged", "--foreground", "--force", f"--socket={where}/{name}.socket", f"--key-file={key}", *files])
    daemon.wait_for("Created socket")
    return daemon
