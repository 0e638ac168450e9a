"""The public store API as a process: see store_cli.c."""
from __future__ import annotations

import os
import selectors
import subprocess
import time
from pathlib import Path
from urllib.parse import unquote_to_bytes

from patience import clock

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / os.environ.get("MUSTER_BUILD", "build")
CLI = BUILD / "tests" / "interop" / "interop_store_cli"


def word(value: bytes | str | int) -> str:
    data = value if isinstance(value, bytes) else str(value).encode()
    return "".join(
        chr(b) if 0x20 < b < 0x7F and b != 0x25 else f"%{b:02x}" for b in data
    ) or "%"


def unword(text: str) -> bytes:
    return b"" if text == "%" else unquote_to_bytes(text)


class StoreError(Exception):
    def __init__(self, code: str, text: str):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


class Cli:
    """One store. A call raises StoreError, or AssertionError if it takes longer than
    `patience` seconds, which no call in these tests may."""

    def __init__(self, *args: object, patience: float = 30, wait: bool = True):
        self.patience = patience
        self.started = time.monotonic()
        self.proc = subprocess.Popen(
            [CLI, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.buffer = b""
        if wait:
            self.ready()

    def ready(self) -> None:
        try:
            self._answer()
        except StoreError:
            self.close(1)
            raise

    def _line(self) -> str:
        with selectors.DefaultSelector() as sel:
            sel.register(self.proc.stdout, selectors.EVENT_READ)
            until = clock() + self.patience
            while b"\n" not in self.buffer:
                left = until - clock()
                assert left > 0, "the client hangs"
                if not sel.select(left):
                    continue
                more = self.proc.stdout.read1(1 << 20)
                assert more, "the client died"
                self.buffer += more
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode()

    def _answer(self) -> list[bytes]:
        line = self._line()
        if line.startswith("err "):
            _, code, text = line.split(" ", 2)
            raise StoreError(code, text)
        assert line == "ok" or line.startswith("ok "), line
        return [unword(w) for w in line.split(" ")[1:]]

    def send(self, *words: object) -> None:
        self.proc.stdin.write((" ".join(word(w) for w in words) + "\n").encode())
        self.proc.stdin.flush()

    def call(self, *words: object) -> list[bytes]:
        self.send(*words)
        return self._answer()

    def answer(self) -> list[bytes]:
        return self._answer()

    def get(self, key) -> bytes:
        return self.call("get", key)[0]

    def add(self, key, n) -> int:
        return int(self.call("add", key, n)[0])

    def close(self, status: int = 0) -> None:
        self.proc.stdin.close()
        try:
            assert self.proc.wait(self.patience) == status
        except BaseException:
            self.proc.kill()
            self.proc.wait()
            raise
        finally:
            self.proc.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
