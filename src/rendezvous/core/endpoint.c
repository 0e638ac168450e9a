/* endpoint.c - see endpoint.h. */
#include "rendezvous/core/endpoint.h"

#include "base/err.h"
#include "base/py/text.h"

static bool bracketed(struct span s)
{
    return s.n > 1 && s.p[0] == '[' && s.p[s.n - 1] == ']';
}

bool port_parse(struct span s, int32_t *out)
{
    int32_t port = 0;

    if (s.n < 1 || s.n > 5)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        port = port * 10 + (s.p[i] - '0');
    }
    *out = port;
    return port < 65536;
}

static int bad_port(struct span whole, struct muster_error *err)
{
    return err_set(err, MUSTER_EINVAL,
                   "The port number of the rendezvous endpoint '%.*s' must be an "
                   "integer between 0 and 65536.",
                   (int)MIN_OF(whole.n, 400u), (const char *)whole.p);
}

static int bad_host(struct span whole, struct muster_error *err)
{
    return err_set(err, MUSTER_EINVAL,
                   "The hostname of the rendezvous endpoint '%.*s' must be a "
                   "dot-separated list of labels, an IPv4 address, or an IPv6 address.",
                   (int)MIN_OF(whole.n, 400u), (const char *)whole.p);
}

int endpoint_parse(const char *text, int32_t default_port, struct endpoint *out,
                   struct muster_error *err)
{
    const struct span whole = py_strip(span_str(text ? text : ""));
    struct span host = whole;
    int32_t port = default_port;

    if (whole.n == 0)
        host = span_str("localhost");
    else if (!bracketed(whole)) {
        const uint8_t *colon = memrchr(whole.p, ':', whole.n);

        if (colon) {
            const size_t before = (size_t)(colon - whole.p);

            host.n = before;
            if (!port_parse(span_of(colon + 1, whole.n - before - 1), &port))
                return bad_port(whole, err);
        }
    }
    if (bracketed(host))
        host = span_of(host.p + 1, host.n - 2);
    if (host.n == 0 || host.n >= sizeof out->host || !py_words(host, ".:-"))
        return bad_host(whole, err);
    memcpy(out->host, host.p, host.n);
    out->host[host.n] = '\0';
    out->port = port;
    return 0;
}
