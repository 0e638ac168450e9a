/* dial_verdict.c - what to say when nobody was reached; see dial_int.h. */
#include "base/err.h"
#include "io/dial_int.h"

const char *dial_remedy(int code)
{
    switch (code) {
    case MUSTER_EREFUSED:
        return "nothing listens there: is the store running, and is the port right?";
    case MUSTER_EUNREACH:
        return "check the address, the routes and the network of both hosts";
    case MUSTER_ERESOLVE:
        return "check the spelling and the name service, or give a numeric address";
    case MUSTER_ENOTSTORE:
        return "another service has that port: check host and port";
    case MUSTER_EHANGUP:
        return "the store may be PyTorch 2.4 or older, or a proxy without a store "
               "behind";
    case MUSTER_ETIMEDOUT:
        return "a firewall may drop packets, or the store's process may be stopped";
    default:
        return "see the reason above";
    }
}

/* What says most about the peer wins: that another service answered outweighs that a
 * second address refused. */
static int weight(int code)
{
    switch (code) {
    case MUSTER_ENOMEM:
        return 7;
    case MUSTER_ENOTSTORE:
        return 6;
    case MUSTER_EHANGUP:
        return 5;
    case MUSTER_ETIMEDOUT:
        return 4;
    case MUSTER_EREFUSED:
        return 3;
    case MUSTER_ERESOLVE:
        return 2;
    case MUSTER_EUNREACH:
        return 1;
    default:
        return 0;
    }
}

void dial_note(struct muster_error *verdict, int code, const char *why)
{
    if (verdict->code == 0) {
        (void)err_set(verdict, code, "%s", why);
        return;
    }
    if (weight(code) > weight(verdict->code))
        verdict->code = code;
    if (strlen(verdict->text) < 500)
        err_add(verdict, "; %s", why);
}
