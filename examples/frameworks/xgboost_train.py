"""A model that all processes train together. Started by: muster run --for=xgboost xgboost_train.py"""
import os
import sys

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

rank, size = int(os.environ["DMLC_TASK_ID"]), int(os.environ["DMLC_NUM_WORKER"])
uri, port = os.environ["DMLC_TRACKER_URI"], int(os.environ["DMLC_TRACKER_PORT"])
tracker = None
if rank == 0:  # xgboost has no process for it; the first worker runs it beside its own work
    tracker = RabitTracker(n_workers=size, host_ip=uri, port=port)
    tracker.start()
with collective.CommunicatorContext(dmlc_tracker_uri=uri, dmlc_tracker_port=port, dmlc_task_id=str(rank),
                                    dmlc_retry=30):
    if "--fail-once" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == size - 1:
        os._exit(3)  # to see a restart: the others cannot finish without this one
    rng = np.random.default_rng(rank)
    x = rng.normal(size=(400, 4))
    data = xgboost.DMatrix(x, label=(x[:, 0] + x[:, 1] > 0).astype(float))
    seen: dict = {}
    xgboost.train({"objective": "binary:logistic", "max_depth": 3, "nthread": 1}, data, num_boost_round=8,
                  evals=[(data, "train")], evals_result=seen, verbose_eval=False)
    losses = seen["train"]["logloss"]
    print(f"rank {collective.get_rank()} of {collective.get_world_size()} learned {losses[-1] < losses[0]} "
          f"{losses[-1]:.6f}", flush=True)
if tracker:
    tracker.wait_for(timeout=30)
