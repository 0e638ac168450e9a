"""A worker that does nothing until DIRECTORY/stop is there. usage: serve_sleep.py DIRECTORY"""
import os
import sys
import time

print(f"up rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} master {os.environ['MASTER_ADDR']} "
      f"at {time.clock_gettime(time.CLOCK_MONOTONIC):.3f}", flush=True)
while not os.path.exists(os.path.join(sys.argv[1], "stop")):
    time.sleep(0.05)
