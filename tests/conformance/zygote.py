"""torchrun without its three seconds of imports: one process that has imported torch
and forks for each launch.

    zygote.py SOCKET

A client (client.py) sends argv, environment and directory together with its descriptors
0, 1 and 2; the fork becomes those and runs the real torch.distributed.run.main() (or
that of torch.distributed.launch). The answers are the pid, then the wait status.
"""
from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback

import torch.distributed.elastic.metrics as metrics
import torch.distributed.launch  # noqa: F401
import torch.distributed.run  # noqa: F401
from torch.distributed.elastic.multiprocessing.errors import record  # noqa: F401


def become(request: dict, fds: list[int]) -> None:
    """The child: never returns."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.set_inheritable(number, True)
    os.closerange(3, 4096)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    signal.set_wakeup_fd(-1)
    for name in ("SIGCHLD", "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    sys.argv = request["argv"]
    for number, mode in ((0, "r"), (1, "w"), (2, "w")):
        stream = open(number, mode, buffering=1 if number == 2 else -1, closefd=False,
                      errors="backslashreplace" if number == 2 else "strict")
        setattr(sys, ("stdin", "stdout", "stderr")[number], stream)
    if os.environ.pop("ZYGOTE_METRICS", None):  # what a program around torchrun can do
        metrics.configure(metrics.ConsoleMetricHandler())
    module = sys.modules["torch.distributed." + request["entry"]]
    code = 0
    try:
        module.main()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def serve(path: str) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_w)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(wake_r, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:  # the test session is gone
                    return
                if key.fileobj is listener:
                    start(listener, waiting)
                else:
                    os.read(wake_r, 4096)
            reap(waiting)


def start(listener: socket.socket, waiting: dict[int, socket.socket]) -> None:
    client, _ = listener.accept()
    data, fds, _, _ = socket.recv_fds(client, 1 << 20, 3)
    while not data.endswith(b"\n"):
        data += client.recv(1 << 20)
    request = json.loads(data.decode("utf-8", "surrogateescape"))
    pid = os.fork()
    if pid == 0:
        become(request, fds)
    for fd in fds:
        os.close(fd)
    waiting[pid] = client
    client.sendall(f"{pid}\n".encode())


def reap(waiting: dict[int, socket.socket]) -> None:
    while waiting:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        client = waiting.pop(pid, None)
        if client:
            try:
                client.sendall(f"{status}\n".encode())
            except BrokenPipeError:
                pass  # somebody killed the client
            client.close()


if __name__ == "__main__":
    serve(sys.argv[1])
