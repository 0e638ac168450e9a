/* kv_operation_int.h - what kv_operation.c, kv_operation_v2.c and kv_operation_v3.c
 * share. */
#ifndef ETCD_CORE_KV_OPERATION_INT_H
#define ETCD_CORE_KV_OPERATION_INT_H

#include "etcd/core/kv_operation.h"

int kv_operation_v2_encode(const struct kv_operation *a, struct etcd_msg *m);
int kv_operation_v3_encode(const struct kv_operation *a, struct etcd_msg *m);
bool kv_operation_v2_answer(struct kv_operation *a, int *status,
                            const struct etcd2_reply *r, struct etcd_held *held);
bool kv_operation_v3_answer(struct kv_operation *a, int *status,
                            const struct etcd3_reply *r, struct etcd_held *held);

#endif
