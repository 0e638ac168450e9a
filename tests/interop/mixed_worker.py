"""A worker without torch: tells its place, sees that the workers' store answers there,
and ends once the group is as large as it is told to wait for."""
import ctypes
import os
import signal
import socket
import struct
import sys
import time

PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed torchrun leaves us behind
env = os.environ
want, _, flag = sys.argv[1].partition("@")  # a size, and a file that must exist, too
addr, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
with socket.create_connection((addr, port), 20) as s:
    s.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\x0d" + struct.pack("<I", 77))
    s.settimeout(20)
    got = b""
    while len(got) < 4:
        got += s.recv(4)
assert struct.unpack("<I", got) == (77,)
print(f"WORKER {env['RANK']} {env['WORLD_SIZE']} {addr}:{port} {env['GROUP_RANK']} "
      f"{env['TORCHELASTIC_USE_AGENT_STORE']} {env['TORCHELASTIC_RESTART_COUNT']}", flush=True)
while env["WORLD_SIZE"] != want or (flag and not os.path.exists(flag)):
    time.sleep(0.1)  # until the agent ends us to form another round
