"""What a user gets wrong: a message that names the thing and what to do, the right exit
code, nobody left running."""
import os
import socket
import subprocess
import threading

import pytest

from run_job import MUSTER, environment, run


def last(text):
    return text.strip().splitlines()[-1]


@pytest.mark.parametrize("words,code,says", [
    (["--no-python", "./nope"], 1, "No such file or directory: './nope'"),
    (["--no-python", "/etc/passwd"], 1, "Permission denied: '/etc/passwd'"),
    (["--no-python", "/etc"], 1, "Permission denied: '/etc'"),
    (["--bogus", "x.py"], 2, "--bogus"),
    (["--nproc-per-node=0", "x.py"], 1, "0"),
    (["--nproc-per-node=x", "x.py"], 1, "Unsupported nproc_per_node value: x"),
    (["--no-python", "-m", "x"], 1, "--no-python"),
    (["--log-dir", "/proc/nope/x", "--no-python", "true"], 1, "/proc/nope/x"),
    (["--event-log-handler", "q", "--no-python", "true"], 1, "'q'"),
    (["--signals-to-handle", "SIGKILL", "--no-python", "true"], 1, "Invalid argument"),
], ids=lambda v: " ".join(v) if isinstance(v, list) else None)
def test_command_lines(tmp_path, words, code, says):
    got, text = run(tmp_path, *words)
    assert got == code and says in last(text), text


def test_missing_interpreter(tmp_path):
    code, text = run(tmp_path, "x.py", env={"PYTHON_EXEC": "/no/such/python"})
    assert code == 1 and "/no/such/python" in last(text), text


def test_missing_script(tmp_path):
    code, text = run(tmp_path, "nope.py")
    assert code == 1 and "exitcode  : 2" in text, text


def test_another_service_at_the_endpoint(tmp_path):
    """An HTTP server, say. It is named as such, at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.close()
        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        code, text = run(tmp_path, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                         "--rdzv-conf=is_host=0,join_timeout=20", "--no-python", "true")
    assert code == 1 and str(port) in text, text


ERROR_FILES = {
    "huge": "head -c 30000000 /dev/zero > $F",
    "binary": "head -c 1000 /dev/urandom > $F",
    "cut short": """printf '{"message": {"mess' > $F""",
    "no object": "echo 17 > $F",
    "a fifo": "mkfifo $F",
    "a symlink": "ln -s /dev/zero $F",
    "a directory": "mkdir $F",
    "a socket file": "ln -s $F $F",
    "deep": "python3 -c \"print('[' * 100000)\" > $F",
}


@pytest.mark.parametrize("kind", ERROR_FILES)
def test_hostile_error_files(tmp_path, kind):
    code, text = run(tmp_path, "--no-python", "sh", "-c", f"F=$TORCHELASTIC_ERROR_FILE; {ERROR_FILES[kind]}; exit 3",
                     patience=60)
    assert code == 1
    assert "exitcode  : 3" in text and "error_file: <N/A>" in text, text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_full_disk(tmp_path):
    """The log directory's file system is full: the workers are told by the kernel, the
    user by us."""
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", full]).returncode:
        pytest.skip("cannot mount")
    try:
        got = subprocess.run([MUSTER, "run", "--standalone", "--log-dir", full, "-t", "1", "--no-python", "sh", "-c",
                              "seq 1000000 || exit 5"], capture_output=True, text=True, env=environment(), timeout=60)
    finally:
        subprocess.run(["umount", full], check=True)
    assert got.returncode == 1
    assert "exitcode  : 5" in got.stderr and "is full" in got.stderr, got.stderr
    assert got.stdout.startswith("[default0]:1\n[default0]:2\n")
