/* http_rules.c - see http_rules.h. */
#include "status/core/http_rules.h"

#include <stdio.h>
#include <strings.h>

#include "base/err.h"

static bool parse_port(const char *text, uint16_t *out)
{
    struct span s = span_str(text);
    uint64_t v;

    if (!span_take_number(&s, &v) || s.n || v > UINT16_MAX)
        return false;
    *out = (uint16_t)v;
    return true;
}

static bool only(const char *text, size_t n, const char *allowed)
{
    for (size_t i = 0; i < n; i++)
        if (!text[i] || !strchr(allowed, text[i]))
            return false;
    return n > 0;
}

int http_address_parse(const char *text, struct http_address *out,
                       struct muster_error *err)
{
    const char *colon = strrchr(text, ':');
    const char *port = colon ? colon + 1 : text, *host = text;
    size_t n = colon ? (size_t)(colon - text) : 0;
    struct http_address a = { .host = "127.0.0.1" };

    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    } else if (memchr(host, ':', n)) {
        n = sizeof a.host; /* An IPv6 address without brackets is ambiguous: refuse. */
    }
    if (!parse_port(port, &a.port) || n >= sizeof a.host)
        return err_set(err, MUSTER_EINVAL,
                       "%s: give ADDR:PORT, with a numeric address (IPv6 in brackets) "
                       "and a port from 0 to 65535; 0 takes any free one",
                       text);
    if (n && !(n == 9 && strncmp(host, "localhost", n) == 0)) {
        if (!only(host, n, "0123456789abcdefABCDEF.:"))
            return err_set(err, MUSTER_EINVAL,
                           "%s: the address must be numeric, or localhost", text);
        memcpy(a.host, host, n);
        a.host[n] = '\0';
    }
    *out = a;
    return 0;
}

bool http_host_is_local(const char *host)
{
    const char *colon = strrchr(host, ':');
    size_t n = strlen(host);

    if (host[0] == '[') { /* [::1]:8080 */
        const char *end = strchr(host, ']');

        return end &&
               (end[1] == '\0' ||
                (end[1] == ':' && only(end + 2, strlen(end + 2), "0123456789"))) &&
               only(host + 1, (size_t)(end - host - 1), "0123456789abcdefABCDEF.:");
    }
    if (colon) {
        if (!only(colon + 1, strlen(colon + 1), "0123456789"))
            return false;
        n = (size_t)(colon - host);
    }
    return (n == 9 && strncasecmp(host, "localhost", n) == 0) ||
           only(host, n, "0123456789.");
}

static bool equal(const char *a, const char *b)
{
    const size_t n = strlen(b);
    unsigned char differ = 0;

    if (strlen(a) != n) /* The length is not a secret; the digits are. */
        return false;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)((unsigned char)a[i] ^ (unsigned char)b[i]);
    return differ == 0;
}

bool http_may_see(const struct http_visit *v, const char *key)
{
    static const char bearer[] = "Bearer ";

    if (v->same_user && v->host && http_host_is_local(v->host))
        return true;
    if (!*key)
        return false;
    if (v->key && equal(v->key, key))
        return true;
    return v->bearer && strncasecmp(v->bearer, bearer, sizeof bearer - 1) == 0 &&
           equal(v->bearer + sizeof bearer - 1, key);
}

bool http_is_cross_site(const struct http_origin *o)
{
    if (o->site)
        return strcmp(o->site, "same-origin") != 0 && strcmp(o->site, "none") != 0;
    if (o->from_our_page)
        return false;
    if (o->origin) {
        const char *const host = strstr(o->origin, "://");

        return !host || !o->host || strcmp(host + 3, o->host) != 0;
    }
    /* Browsers leave Sec-Fetch-Site out if we are neither on localhost nor on https. */
    return o->agent && strncmp(o->agent, "Mozilla/", 8) == 0;
}
