/* hosts_file.c - see hosts_file.h. The files are read as glibc does: # begins a
 * comment, white space separates words, and case does not matter. */
#include "net/core/hosts_file.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <strings.h>

/* Takes the next line, without its comment, off the text. */
static bool next_line(struct span *text, struct span *line)
{
    if (text->n == 0)
        return false;
    const struct span whole = span_take_line(text);
    const uint8_t *hash = whole.n ? memchr(whole.p, '#', whole.n) : NULL;

    *line = span_of(whole.p, hash ? (size_t)(hash - whole.p) : whole.n);
    return true;
}

static bool hosts_next_word(struct span *line, struct span *word)
{
    return span_take_word(line, " \t\v\f\r", word);
}

static bool same_name(struct span word, const char *name)
{
    return word.n == strlen(name) &&
           strncasecmp((const char *)word.p, name, word.n) == 0;
}

/* True for "hosts: files dns", unless a rule in brackets follows "files". */
static bool files_first(struct span nsswitch)
{
    struct span line, word;

    while (next_line(&nsswitch, &line)) {
        if (!hosts_next_word(&line, &word) || !same_name(word, "hosts:"))
            continue;
        return hosts_next_word(&line, &word) && same_name(word, "files") &&
               !(hosts_next_word(&line, &word) && word.p[0] == '[');
    }
    return false;
}

struct address {
    int family; /* 0: none */
    uint8_t bytes[16];
};

static struct address hosts_parse(struct span word)
{
    struct address a = { 0 };
    char text[INET6_ADDRSTRLEN + 1];

    if (word.n >= sizeof text)
        return a;
    memcpy(text, word.p, word.n);
    text[word.n] = '\0';
    if (inet_pton(AF_INET, text, a.bytes) == 1)
        a.family = AF_INET;
    else if (inet_pton(AF_INET6, text, a.bytes) == 1)
        a.family = AF_INET6;
    return a;
}

/* The address of the only line that has the name. */
static bool only_address(struct span hosts, const char *name, struct address *out)
{
    struct span line, word;
    size_t found = 0;

    while (next_line(&hosts, &line)) {
        if (!hosts_next_word(&line, &word))
            continue;
        const struct address a = hosts_parse(word);
        while (a.family && hosts_next_word(&line, &word)) {
            if (!same_name(word, name))
                continue;
            *out = a;
            found++;
            break; /* A name that is twice in one line counts once. */
        }
    }
    return found == 1;
}

/* glibc takes ::1 and ::ffff:a.b.c.d as IPv4 when it is asked for IPv4. */
static bool may_be_ipv4(const struct address *a)
{
    struct in6_addr six;

    memcpy(&six, a->bytes, sizeof six);
    return a->family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(&six) || IN6_IS_ADDR_V4MAPPED(&six));
}

/* The names of the first line that has the address. */
static bool hosts_names_of(struct span hosts, const struct address *want,
                           struct span *names)
{
    struct span line, word;

    while (next_line(&hosts, &line)) {
        if (!hosts_next_word(&line, &word))
            continue;
        const struct address a = hosts_parse(word);
        if (want->family == AF_INET && may_be_ipv4(&a))
            return false;
        if (a.family != want->family || memcmp(a.bytes, want->bytes, 16) != 0)
            continue;
        *names = line;
        return hosts_next_word(&line, &word);
    }
    return false;
}

bool hosts_fqdn(struct span nsswitch, struct span hosts, const char *name, char *out,
                size_t size)
{
    struct address at;
    struct span names, word, best;

    /* A name that begins with a digit may be an address itself. */
    if (!*name || (*name >= '0' && *name <= '9') || strchr(name, ':') ||
        !files_first(nsswitch) || !only_address(hosts, name, &at) ||
        !hosts_names_of(hosts, &at, &names) || !hosts_next_word(&names, &best))
        return false;
    /* Like Python, take the first name that has a dot, else the first. */
    for (word = best; !memchr(word.p, '.', word.n);)
        if (!hosts_next_word(&names, &word)) {
            word = best;
            break;
        }
    if (word.n >= size)
        return false;
    memcpy(out, word.p, word.n);
    out[word.n] = '\0';
    return true;
}
