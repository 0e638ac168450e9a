/* etcd_store.h - a store in etcd as a struct async_store, on v2 and v3: what torch's
 * EtcdStore does, and what that lacks (compare_set, append, delete, counting).
 *
 * On v2 keys and values are written in base64 below the directory, as torch does it, so
 * that torch's EtcdStore and ours can share one store; on v3 both are plain bytes. */
#ifndef ETCD_ETCD_STORE_H
#define ETCD_ETCD_STORE_H

#include "etcd/kv.h"
#include "store/async_store.h"

/* dir ends in "/". kv's client is borrowed and must outlive the store. All keys are
 * written under the v3 lease *lease, which is read at each write; 0 stands for none. */
int store_etcd_open(const struct etcd_kv *kv, const char *dir, const int64_t *lease,
                    struct async_store **out, struct muster_error *err);

#endif
