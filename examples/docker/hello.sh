#!/bin/sh
# A worker of the quick starts: says who it is. Yours is `train.py`, without --no-python.
echo "rank $RANK of $WORLD_SIZE on $(hostname), rank 0 is at $MASTER_ADDR:$MASTER_PORT"
