/* etcd_store.h - a store in etcd as a struct async_store: torch's EtcdStore, and what
 * torch's lacks (compare_set, append, delete, counting), on v2 and v3.
 *
 * On v2 keys and values are base64 below the directory, as torch writes them, so that
 * torch's EtcdStore and ours share one store; on v3 both are plain bytes. */
#ifndef ETCD_ETCD_STORE_H
#define ETCD_ETCD_STORE_H

#include "etcd/kv.h"
#include "store/async_store.h"

/* dir ends in "/". kv's client is borrowed: it must outlive the store. The lease, 0 or
 * one of v3's, is what all keys are written under; *lease is read at each write. */
int store_etcd_open(const struct etcd_kv *kv, const char *dir, const int64_t *lease,
                    struct async_store **out, struct muster_error *err);

#endif
