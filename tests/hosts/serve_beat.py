"""A worker that writes down for how long it lives, and ignores SIGTERM where DIRECTORY has a file deaf-HOST.

usage: serve_beat.py DIRECTORY. Each has a file of its own there: "UP-TIME WORLD HOST RANK LAST-BEAT".
"""
import os
import signal
import socket
import sys
import time


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def on_term(number: int, frame: object) -> None:
    if not os.path.exists(os.path.join(directory, f"deaf-{socket.gethostname()}")):
        os._exit(128 + number)


directory, rank, world, up = sys.argv[1], os.environ["RANK"], os.environ["WORLD_SIZE"], now()
signal.signal(signal.SIGTERM, on_term)
print(f"up rank {rank} of {world} master {os.environ['MASTER_ADDR']} at {up:.3f}", flush=True)
path = os.path.join(directory, f"beat-{socket.gethostname()}-{os.getpid()}")
with open(path, "w") as file:
    while not os.path.exists(os.path.join(directory, "stop")):
        file.seek(0)
        file.write(f"{up:.3f} {world} {socket.gethostname()} {rank} {now():.3f}\n")
        file.flush()
        time.sleep(0.01)
