"""Stands for torchrun on the PATH of a case: asks the zygote for a launch, hands
signals on, ends as the launch ended. Writes the agent's pid to .agent, for SIGKILL."""
import json
import os
import signal
import socket
import sys

server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect(os.environ["ZYGOTE"])
env = {k: v for k, v in os.environ.items() if k not in ("ZYGOTE", "_")}
name = os.path.basename(sys.argv[0])
mask = os.umask(0)
os.umask(mask)
request = json.dumps({
    "entry": "launch" if name.startswith("launch") else "run",
    "argv": [sys.argv[0], *sys.argv[1:]], "cwd": os.getcwd(), "env": env,
    "umask": mask,
})
socket.send_fds(server, [request.encode("utf-8", "surrogateescape") + b"\n"], [0, 1, 2])
answers = server.makefile()
agent = int(answers.readline())
with open(".agent", "w", encoding="ascii") as f:
    f.write(str(agent))
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    if number < 32:
        signal.signal(number, lambda n, _: os.kill(agent, n))
status = answers.readline()
if not status:
    sys.exit(97)
status = int(status)
if os.WIFSIGNALED(status):
    if os.WTERMSIG(status) != signal.SIGKILL:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
sys.exit(os.WEXITSTATUS(status))
