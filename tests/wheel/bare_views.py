"""The page and `muster top` on a machine that has no library for them: prints what was seen.

usage: bare_views.py MUSTER
"""
import os
import pty
import select
import subprocess
import sys
import time
import urllib.request

MUSTER = sys.argv[1]


def until(holds):
    deadline = time.monotonic() + 100
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def screen(*words):
    """What a program draws on a terminal until the head of `top` is there; then it gets a q."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    seen = b""
    while b"muster top" not in seen:
        assert select.select([terminal], [], [], 100)[0], seen
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # it has ended
            break
    os.write(terminal, b"q")
    while True:
        try:
            os.read(terminal, 65536)
        except OSError:
            break
    return seen, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


job = subprocess.Popen([MUSTER, "run", "--nproc-per-node=2", "--status-http=127.0.0.1:0",
                        "--no-python", "sh", "-c", "echo rank $RANK; read _"], stdin=subprocess.PIPE)
try:
    address = until(lambda: subprocess.run([MUSTER, "status", "--url", str(job.pid)],
                                           capture_output=True, text=True).stdout.strip())
    print("page", "<title>" in urllib.request.urlopen(address, timeout=60).read().decode())
    drawn, code = screen(MUSTER, "top", str(job.pid))
    print("top", b"muster top" in drawn, code)
    if code:
        print(drawn.decode())
finally:
    job.terminate()
    job.wait()
