/* rdzv_conf_table.c - the settings of the rendezvous, for the manual page. */
#include "launch/core/help.h"

const struct conf_key conf_keys[] = {
    { "join_timeout", "c10d, etcd-v2, etcd-v3", "600",
      "Seconds until a node that waits for a round gives up." },
    { "last_call_timeout", "c10d, etcd, etcd-v2, etcd-v3", "30",
      "Seconds that a round with the minimum of nodes stays open for more." },
    { "last_call", "c10d, etcd-v3", "first",
      "first: later rounds begin as soon as all nodes that are known and alive have "
      "come; "
      "always: every round waits for last_call_timeout, as torch's do." },
    { "close_timeout", "c10d, etcd-v2, etcd-v3", "30",
      "Seconds to close the run, or to leave it." },
    { "keep_alive_interval", "c10d, etcd-v2, etcd-v3", "5",
      "Seconds between heartbeats." },
    { "keep_alive_max_attempt", "c10d, etcd-v2, etcd-v3", "3",
      "So many missed heartbeats make a node dead." },
    { "heartbeat_timeout", "c10d, etcd-v2, etcd-v3", "5",
      "Seconds for one heartbeat." },
    { "read_timeout", "c10d, etcd-v2, etcd-v3", "60",
      "Seconds for the store, or the etcd cluster, to answer." },
    { "cas_backoff_max_seconds", "c10d, etcd-v2, etcd-v3", "0.0",
      "After a write that another node was faster with, wait at random for up to so "
      "many "
      "seconds; 0: as the number of nodes asks for. A store of ours has no such "
      "writes." },
    { "store_type", "c10d", "tcp", "tcp, or file: then the endpoint is a path." },
    { "bind", "c10d, static, etcd-v2, etcd-v3", "found out",
      "Where the stores that this node serves listen: all, or a numeric address." },
    { "token_file", "all", "none", "As --token-file." },
    { "token_optional", "all", "0", "As --token-optional." },
    { "encrypt", "all", "0", "As --encrypt." },
    { "munge", "all", "0; auto under srun",
      "Take the secret from MUNGE, for jobs of one user: 1, 0, or auto (if it runs)." },
    { "is_host", "c10d", "found out", "Whether this node hosts the store." },
    { "hosted", "c10d", "1",
      "Whether a store of ours may own the state and tell each node; 0: read and write "
      "it "
      "as torch's nodes do." },
    { "loss_grace_ms", "c10d", "50",
      "Milliseconds that a node whose connection broke has to come back before it is "
      "lost, at most 60000." },
    { "timeout", "etcd, static", "900",
      "Seconds until a node that waits for a round gives up." },
    { "protocol", "etcd, etcd-v2, etcd-v3", "http", "http or https." },
    { "ca_cert", "etcd-v2, etcd-v3", "the system's",
      "File with the CA of the etcd servers. The backend etcd calls it cacert." },
    { "ssl_cert", "etcd-v2, etcd-v3", "none",
      "File with our client certificate. The backend etcd calls it cert." },
    { "ssl_cert_key", "etcd-v2, etcd-v3", "in ssl_cert",
      "File with its key. The backend etcd calls it key." },
    { "cacert", "etcd", "the system's", "See ca_cert." },
    { "cert", "etcd", "none", "See ssl_cert." },
    { "key", "etcd", "in cert", "See ssl_cert_key." },
    { "etcd_prefix", "etcd", "/torchelastic/p2p",
      "Where the keys are; must start with a slash." },
    { "prefix", "etcd-v3", "/muster", "Where the keys are." },
    { "lease_ttl", "etcd-v3", "10",
      "Seconds after which a node that is gone is known to be, from 2 to 3600; 4 with "
      "--rdzv-serve." },
    { "peer_port", "etcd-v3", "the client's + 1",
      "With --rdzv-serve: the port at which its etcd servers talk to each other." },
    { "user", "etcd, etcd-v2, etcd-v3", "none", "Name of an etcd user." },
    { "password_file", "etcd, etcd-v2, etcd-v3", "none",
      "File whose first line is the password. MUSTER_ETCD_PASSWORD may hold it, too." },
    { "password", "etcd, etcd-v2, etcd-v3", "none",
      "The password itself, for everybody on the machine to read." },
};

const size_t conf_keys_count = ARRAY_LEN(conf_keys);
