"""A sum over all workers with TensorFlow. Started by: muster run --for=tf tf_sum.py"""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = tf.distribute.cluster_resolver.TFConfigClusterResolver()


@tf.function
def total():
    def one():
        here = tf.constant(float(task.task_id + 1))
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

    return strategy.run(one)


print(f"worker {task.task_id} of {strategy.num_replicas_in_sync} has the sum {float(total()):g}", flush=True)
