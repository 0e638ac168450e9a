"""Real torch DynamicRendezvousHandlers, one thread each: the peer of bench_scale.py.

    torch_nodes.py HOST PORT RUN_ID FIRST COUNT TOTAL ROUNDS [host]

Joins when a line comes on standard input; prints `told ROUND RANK WORLD TIME` for each
node and round, TIME on CLOCK_MONOTONIC. With `host` it also hosts torch's own store, and
prints `hosting PORT` first. Up to the rank only: no worker store, as for our nodes.
"""
import sys
import threading
import time

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
    C10dRendezvousBackend,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    _RendezvousExitOp,
    _RendezvousJoinOp,
    create_handler,
)

host, port, run_id, first, count, total, rounds = sys.argv[1:8]
first, count, total, rounds = int(first), int(count), int(total), int(rounds)
server = None
if sys.argv[8:] == ["host"]:
    server = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    port = server.port
    print("hosting", port, flush=True)

params = RendezvousParameters("c10d", f"{host}:{port}", run_id, total, total)
handlers = []
for i in range(count):
    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    params = RendezvousParameters(
        "c10d", f"{host}:{port}", run_id, total, total, local_addr=f"torch{first + i:05}"
    )
    handlers.append(create_handler(store, C10dRendezvousBackend(store, run_id), params))
print("ready", flush=True)
lock = threading.Lock()


def join(handler) -> None:
    handler._stop_heartbeats()
    deadline = handler._get_deadline(handler._settings.timeout.join)
    handler._op_executor.run(_RendezvousExitOp(), deadline)
    handler._op_executor.run(_RendezvousJoinOp(), deadline, handler._get_deadline)
    at = time.monotonic()
    handler._start_heartbeats()
    rank, world = handler._get_world()
    with lock:
        print("told", handler._state_holder.state.round, rank, world, at, flush=True)


for _ in range(rounds):
    if not sys.stdin.readline():
        break
    threads = [threading.Thread(target=join, args=(h,)) for h in handlers]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
sys.stdin.readline()
for h in handlers:
    h._stop_heartbeats()
