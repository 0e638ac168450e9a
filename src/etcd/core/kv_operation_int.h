/* etcd_ask_int.h - what etcd_ask.c, etcd_ask2.c and etcd_ask3.c share. */
#ifndef ETCD_CORE_KV_OPERATION_INT_H
#define ETCD_CORE_KV_OPERATION_INT_H

#include "etcd/core/kv_operation.h"

int etcd_ask2_encode(const struct etcd_ask *a, struct etcd_msg *m);
int etcd_ask3_encode(const struct etcd_ask *a, struct etcd_msg *m);
bool etcd_ask2_answer(struct etcd_ask *a, int *status, const struct etcd2_reply *r,
                      struct etcd_held *held);
bool etcd_ask3_answer(struct etcd_ask *a, int *status, const struct etcd3_reply *r,
                      struct etcd_held *held);

#endif
