/* worker_net.c - which interface the workers use: that of --net, of --local-addr, or of
 * the connection by which this node reaches the others.
 *
 * Left to itself, gloo takes the address that the machine's own name resolves to, and
 * loopback if it does not resolve; then no other node can reach it. A loopback address
 * says nothing about the way to other nodes, so it never decides. */
#include "agent/agent_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "net/core/interfaces.h"
#include "net/read_interfaces.h"
#include "net/resolve.h"
#include "rendezvous/handler.h"

struct agent_net {
    char interface[INTERFACE_NAME]; /* that the workers are to use; "": none */
    char logged[INTERFACE_NAME];    /* the last that a line was about */
    const char *from;               /* why that one */
    bool fixed;                     /* whatever connections come and go */
    struct resolve *lookup;         /* owned while --local-addr is looked up */
};

const char *agent_net_interface(const struct agent *a)
{
    return a->net->interface;
}

static bool use_interface_of(struct agent *a, const struct sockaddr *sa,
                             const char *from)
{
    uint8_t ip[16];

    if (!ip_of_sockaddr(sa, ip) || ip_is_loopback(ip) ||
        !interface_here(sa, a->net->interface))
        return false;
    a->net->from = from;
    return true;
}

static void worker_net_on_resolved(void *ctx, int status,
                                   const struct sockaddr_storage *addrs, size_t count,
                                   const struct muster_error *err)
{
    struct agent *a = ctx;

    (void)status; /* Without an answer, the connection decides. */
    (void)err;
    a->net->lookup = NULL;
    for (size_t i = 0; i < count && !a->net->fixed; i++)
        a->net->fixed = use_interface_of(a, (const struct sockaddr *)&addrs[i],
                                         "that of --local-addr");
}

static int use_option(struct agent *a, struct muster_error *err)
{
    const struct interface *chosen;
    struct interfaces all;

    interfaces_read(&all);
    const int rc = interface_chosen(&all, a->config->net, &chosen, err);

    if (rc == 0)
        memcpy(a->net->interface, chosen->name, sizeof chosen->name);
    interfaces_free(&all);
    a->net->from = "that of --net";
    a->net->fixed = true;
    return rc;
}

int agent_net_open(struct agent *a, struct muster_error *err)
{
    const struct rdzv_params *p = &a->config->rdzv;

    a->net = mem_calloc(1, sizeof *a->net);
    if (!a->net)
        return err_nomem(err);
    if (a->config->net)
        return use_option(a, err);
    if (p->local_addr && p->max_nodes > 1)
        return resolve_start(&a->loop, p->local_addr, 0, worker_net_on_resolved, a,
                             &a->net->lookup, err);
    return 0;
}

void agent_net_close(struct agent *a)
{
    if (a->net)
        resolve_cancel(a->net->lookup);
    mem_free(a->net);
    a->net = NULL;
}

static void follow_connection(struct agent *a)
{
    const struct rdzv_handler_ops *ops = a->handler->ops;
    struct sockaddr_storage at;
    char addr[1025];

    a->net->interface[0] = '\0';
    if (a->round.world_size > 1 && ops->own_addr &&
        ops->own_addr(a->handler, addr, sizeof addr) && resolve_numeric(addr, 0, &at))
        (void)use_interface_of(a, (const struct sockaddr *)&at,
                               "by which this node reaches the others");
}

void agent_net_choose(struct agent *a)
{
    struct worker_net net;
    struct buf b;

    if (!a->net->fixed)
        follow_connection(a);
    if (a->log->least > LOG_INFO || strcmp(a->net->interface, a->net->logged) == 0)
        return;
    memcpy(a->net->logged, a->net->interface, sizeof a->net->logged);
    worker_net(&net, a->config, a->net->interface, a->opts.envp);
    if (net.count == 0)
        return;
    buf_init(&b, 256);
    for (size_t i = 0; i < net.count; i++)
        (void)buf_printf(&b, "%s%s=%s", i ? " " : "", net.vars[i].name,
                         net.vars[i].value);
    (void)buf_u8(&b, 0);
    log_line(
        a->log, LOG_INFO, AT_AGENT,
        "the workers' network is interface %s, %s (%s; --net=IFACE|CIDR chooses, and a "
        "variable that you set stays as it is)",
        a->net->interface, a->net->from, (const char *)buf_data(&b));
    buf_fini(&b);
}
