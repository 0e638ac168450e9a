"""A sum over all workers with TensorFlow. Started by: muster run --for=tf tf_sum.py"""
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = tf.distribute.cluster_resolver.TFConfigClusterResolver()


if "--fail-once" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if task.task_id == strategy.num_replicas_in_sync - 1:
        os._exit(3)  # to see a restart: the others cannot finish without this one


@tf.function
def total():
    def one():
        here = tf.constant(float(task.task_id + 1))
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

    return strategy.run(one)


print(f"worker {task.task_id} of {strategy.num_replicas_in_sync} has the sum {float(total()):g}", flush=True)
