"""Workers on a terminal: progress bars, breakpoint() and window sizes as without a launcher between."""
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios

import pytest
from patience import clock
from run_job import MUSTER, environment


class Screen:
    """muster run on a terminal of its own, of 33 lines and 99 columns."""

    def __init__(self, tmp_path, script, *words, python=sys.executable):
        path = tmp_path / "t.py"
        path.write_text(script)
        read, write = os.pipe()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.read(read, 1)  # until the window has its size
            os.execve(str(MUSTER), ["muster", "run", "--standalone", *words, str(path)],
                      {**environment(), "TERM": "xterm", "PYTHON_EXEC": python})
        self.resize(33, 99)
        os.write(write, b"x")
        os.close(read)
        os.close(write)
        self.out = b""

    def resize(self, lines, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, text, patience=60):
        until = clock() + patience
        while text not in self.out:
            assert clock() < until, self.out.decode(errors="replace")
            if select.select([self.master], [], [], 1)[0]:
                self.read()

    def read(self):
        try:
            part = os.read(self.master, 65536)
        except OSError:
            part = b""
        self.out += part
        return part

    def type(self, text):
        os.write(self.master, text)

    def end(self, patience=60):
        signal.alarm(patience)
        while self.read():
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        signal.alarm(0)
        os.close(self.master)
        return code


def test_progress_bar(tmp_path):
    """Each step reaches the screen when it is drawn, over the one before, and the last one is what a person saw."""
    s = Screen(tmp_path, "import sys, time\n"
                         "for i in range(0, 101, 20):\n"
                         "    sys.stderr.write(f'\\r{i:3}%|{\"#\" * (i // 20):5}|')\n"
                         "    sys.stderr.flush()\n"
                         "    input()\n"
                         "sys.stderr.write('\\n')\nraise SystemExit(3)\n")
    for i in range(0, 101, 20):
        s.wait_for(f"\r{i:3}%|{'#' * (i // 20):5}|".encode())
        s.type(b"\n")
    assert s.end() == 1
    last = s.out.decode().split("its last words:")[-1]
    assert "100%|#####|" in last and " 80%" not in last, last


def test_breakpoint(tmp_path):
    """The debugger's prompt, what is typed, and the answer."""
    s = Screen(tmp_path, "secret = 6 * 7\nbreakpoint()\nprint('went on with', secret)\n")
    s.wait_for(b"(Pdb) ")
    s.type(b"p secret + 1000\n")
    s.wait_for(b"1042")
    s.type(b"secret = 5\n")
    s.type(b"c\n")
    s.wait_for(b"went on with 5")
    assert s.end() == 0, s.out.decode()


def test_window_size(tmp_path):
    """It is the terminal's, and stays so when that changes. (SIGWINCH goes to the foreground group alone, which a worker,
    in a session of its own as torchrun's are, has never been in.)"""
    s = Screen(tmp_path, "import os, sys, time\n"
                         "print('FIRST', *os.get_terminal_size(2), sys.stdout.isatty(), sys.stderr.isatty(), flush=True)\n"
                         "while os.get_terminal_size(2).columns != 120:\n    time.sleep(0.02)\n"
                         "print('SEEN', *os.get_terminal_size(1), flush=True)\n")
    s.wait_for(b"FIRST 99 33 True True")
    s.resize(50, 120)
    s.wait_for(b"SEEN 120 50")
    assert s.end() == 0


# As Python 3.13 and 3.14 write it, at a terminal or with FORCE_COLOR.
COLOURED = ("Traceback (most recent call last):\n"
            "  File \033[35m\"train.py\"\033[0m, line \033[35m4\033[0m, in \033[35mload\033[0m\n"
            "    raise ValueError(\"bad data shard 17\")\n"
            "\033[1;35mValueError\033[0m: \033[35mbad data shard 17\033[0m\n")


@pytest.mark.parametrize("python", ["recorded", sys.executable, "python3.13", "python3.14"])
def test_coloured_traceback(tmp_path, python):
    """The verdict has the exception and its place, whatever colours the traceback had; the screen has the colours."""
    if python != "recorded" and (not shutil.which(python) or subprocess.run(  # a shim may lead nowhere
            [python, "-c", ""], stderr=subprocess.DEVNULL).returncode):
        pytest.skip(f"there is no {python} here")
    script = (f"import sys\nsys.stderr.write({COLOURED!r})\nsys.exit(1)\n" if python == "recorded" else
              "import sys\n\ndef load():\n    raise ValueError('bad data shard 17')\n\nload()\n")
    s = Screen(tmp_path, script, python=sys.executable if python == "recorded" else shutil.which(python))
    assert s.end() == 1
    said = s.out.decode().replace("\r\n", "\n").split("muster: the job failed: ")[-1]
    assert "): ValueError: bad data shard 17" in said and ', line 4, in load' in said, said
    assert "\\x1b" not in said and "its last words" not in said, said
    assert python == sys.executable or "\033[1;35mValueError\033[0m" in s.out.decode(), s.out
