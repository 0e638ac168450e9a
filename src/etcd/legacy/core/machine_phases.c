/* machine_phases.c - which step follows which answer: torch's state machine.
 *
 * Phases that read the document share take_doc(); then on_doc() decides by phase and
 * status. The steps themselves are in machine_steps.c. */
#include <stdio.h>

#include "base/err.h"
#include "etcd/legacy/core/machine_int.h"

/* A document has been read: what it means to the phase that asked. */
static int on_doc(struct legacy *l, struct legacy_fx *fx)
{
    l->closed = l->doc.status == LEGACY_CLOSED;
    legacy_seen(l);
    switch ((int)l->phase) {
    case LEGACY_PH_LOOK:
        break;
    case LEGACY_PH_JOIN_GET:
        return legacy_join(l, fx);
    case LEGACY_PH_CALL_GET:
        return legacy_last_call(l, fx);
    case LEGACY_PH_PEERS_GET:
        return legacy_peers(l, fx);
    case LEGACY_PH_CONFIRM_GET:
        return legacy_confirm(l, fx);
    case LEGACY_PH_FINAL_GET:
        return legacy_final(l, fx);
    case LEGACY_PH_ANNOUNCE_GET:
        return legacy_announce(l, fx);
    case LEGACY_PH_FREE_GET:
        if (l->doc.status == LEGACY_FINAL && l->doc.version == l->version)
            return legacy_list(l, fx, LEGACY_PH_FREE_LIST);
        return legacy_again(l, fx);
    case LEGACY_PH_MEMBER_GET:
        return legacy_member(l, fx);
    case LEGACY_PH_CLOSE_GET:
        return legacy_close_put(l, fx);
    }
    switch (l->doc.status) {
    case LEGACY_CLOSED:
        legacy_refuse(l, fx, MUSTER_ECLOSED, "the run id was closed");
        return 0;
    case LEGACY_JOINABLE:
        return legacy_start_join(l);
    case LEGACY_FINAL:
        l->version = l->doc.version;
        legacy_delay(l, LEGACY_PH_ANNOUNCE_DELAY);
        return 0;
    case LEGACY_SETUP:
    case LEGACY_FROZEN:
        break;
    }
    return legacy_wait(l, fx, LEGACY_PH_LOOK_WAIT, false, UINT64_MAX);
}

static int take_doc(struct legacy *l, const struct legacy_event *ev,
                    struct legacy_fx *fx)
{
    struct muster_error err = { 0 };
    int rc;

    legacy_doc_fini(&l->doc);
    buf_clear(&l->text);
    if (buf_append_span(&l->text, ev->value) < 0)
        return MUSTER_ENOMEM;
    l->index = ev->index;
    rc = legacy_doc_read(&l->doc, ev->value, &err);
    if (rc == MUSTER_ENOMEM)
        return rc;
    if (rc == 0)
        return on_doc(l, fx);
    (void)snprintf(l->reason, sizeof l->reason, "%s", err.text);
    if (l->joining) {
        legacy_refuse(l, fx, MUSTER_ESTATE, l->reason);
    } else if (l->close) {
        return legacy_close_done(l, fx, MUSTER_ESTATE, l->reason);
    } else {
        legacy_news(l, fx, RDZV_NEWS_BACKEND, l->reason);
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    }
    return 0;
}

/* The request went wrong in a way that its phase has no answer to. */
static int on_failure(struct legacy *l, const struct legacy_event *ev,
                      struct legacy_fx *fx)
{
    const char *text = ev->text && ev->text[0] ? ev->text : "the request failed";

    if (l->close)
        return legacy_close_done(l, fx, ev->code, text);
    if (l->joining && ev->fatal) {
        legacy_refuse(l, fx, ev->code, text);
        return 0;
    }
    if (l->joining) {
        legacy_later(l, text);
        return 0;
    }
    if (l->member) {
        if (ev->code == MUSTER_ENOENT && l->phase == LEGACY_PH_MEMBER_GET) {
            legacy_news(l, fx, RDZV_NEWS_LOST,
                        "our version of the rendezvous was taken down");
            l->phase = LEGACY_PH_IDLE;
            return 0;
        }
        if (ev->code != MUSTER_ENOENT && ev->code != MUSTER_ENOMEM)
            legacy_news(l, fx, RDZV_NEWS_BACKEND, text);
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, 1000);
    }
    return 0;
}

/* Our write is done. */
static int machine_phases_on_done(struct legacy *l, const struct legacy_event *ev,
                                  struct legacy_fx *fx)
{
    l->index = ev->index;
    switch ((int)l->phase) {
    case LEGACY_PH_CREATE:
        return legacy_read_counter(l, fx);
    case LEGACY_PH_COUNTER_GET:
        return legacy_count_version(l, ev, fx);
    case LEGACY_PH_COUNTER_PUT:
        return legacy_make_version(l, fx);
    case LEGACY_PH_MAKE_VERSION:
        return legacy_publish(l, fx);
    case LEGACY_PH_PUBLISH:
        return legacy_start_join(l);
    case LEGACY_PH_JOIN_PUT:
        return legacy_joined(l, fx);
    case LEGACY_PH_CALL_KEEP:
        return legacy_hold_call(l, fx);
    case LEGACY_PH_CALL_FREEZE:
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
        return 0;
    case LEGACY_PH_CONFIRM_KEY:
        return legacy_confirm_put(l, fx);
    case LEGACY_PH_CONFIRM_PUT:
        return legacy_confirmed(l, fx);
    case LEGACY_PH_ANNOUNCE_PUT:
        return legacy_get(l, fx, LEGACY_PH_FREE_GET);
    case LEGACY_PH_FREE_LIST:
        return legacy_free_version(l, ev, fx);
    case LEGACY_PH_FREE_DELETE:
        return legacy_again(l, fx);
    case LEGACY_PH_MEMBER_LIST:
        return legacy_member_list(l, ev, fx);
    case LEGACY_PH_CLOSE_PUT:
    case LEGACY_PH_CLOSE_NEW:
        return legacy_close_done(l, fx, 0, NULL);
    }
    return 0;
}

/* Somebody else's write came first. */
static int on_lost(struct legacy *l, const struct legacy_event *ev,
                   struct legacy_fx *fx)
{
    switch ((int)l->phase) {
    case LEGACY_PH_MAKE_PREFIX:
    case LEGACY_PH_MAKE_RUN:
    case LEGACY_PH_MAKE_RDZV:
    case LEGACY_PH_MAKE_COUNTER:
        return legacy_make_next(l, fx);
    case LEGACY_PH_CREATE:
        return legacy_get(l, fx, LEGACY_PH_LOOK);
    case LEGACY_PH_COUNTER_PUT: /* We were away, and our setup document expired. */
        legacy_later(l, "somebody else has counted a version meanwhile");
        return 0;
    case LEGACY_PH_JOIN_PUT:
        legacy_delay(l, LEGACY_PH_JOIN_DELAY);
        return 0;
    case LEGACY_PH_CALL_KEEP:
    case LEGACY_PH_CALL_FREEZE:
        legacy_delay(l, LEGACY_PH_CALL_DELAY);
        return 0;
    case LEGACY_PH_CONFIRM_PUT:
        legacy_delay(l, LEGACY_PH_CONFIRM_DELAY);
        return 0;
    case LEGACY_PH_ANNOUNCE_PUT:
        legacy_delay(l, LEGACY_PH_ANNOUNCE_DELAY);
        return 0;
    case LEGACY_PH_FREE_DELETE:
        return legacy_again(l, fx);
    case LEGACY_PH_CLOSE_PUT:
    case LEGACY_PH_CLOSE_NEW:
        legacy_delay(l, LEGACY_PH_CLOSE_DELAY);
        return 0;
    }
    return on_failure(l, ev, fx);
}

/* A wait is over, with or without an event: read again. */
static int machine_phases_on_waited(struct legacy *l, const struct legacy_event *ev,
                                    struct legacy_fx *fx)
{
    if (l->joining && l->now.mono_ms > l->join_by_ms)
        return legacy_again(l, fx); /* which gives up */
    switch ((int)l->phase) {
    case LEGACY_PH_LOOK_WAIT:
        if (ev->code == 0) /* torch sleeps a second, and may sleep past a last call */
            legacy_delay(l, LEGACY_PH_RETRY);
        else
            legacy_later(l, "somebody else is setting up or completing a version");
        return 0;
    case LEGACY_PH_CALL_WAIT:
        return legacy_get(l, fx, LEGACY_PH_CALL_GET);
    case LEGACY_PH_PEERS_WAIT:
        return legacy_get(l, fx, LEGACY_PH_PEERS_GET);
    case LEGACY_PH_FINAL_WAIT:
        return legacy_get(l, fx, LEGACY_PH_FINAL_GET);
    case LEGACY_PH_FREE_WAIT:
        return legacy_get(l, fx, LEGACY_PH_FREE_GET);
    case LEGACY_PH_MEMBER_WAIT:
        legacy_pause(l, LEGACY_PH_MEMBER_DELAY, LEGACY_COALESCE_MS);
        return 0;
    }
    return 0;
}

int legacy_on_reply(struct legacy *l, const struct legacy_event *ev,
                    struct legacy_fx *fx)
{
    switch ((int)l->phase) {
    case LEGACY_PH_LOOK:
    case LEGACY_PH_JOIN_GET:
    case LEGACY_PH_CALL_GET:
    case LEGACY_PH_PEERS_GET:
    case LEGACY_PH_CONFIRM_GET:
    case LEGACY_PH_FINAL_GET:
    case LEGACY_PH_ANNOUNCE_GET:
    case LEGACY_PH_FREE_GET:
    case LEGACY_PH_MEMBER_GET:
        return ev->code == 0 ? take_doc(l, ev, fx) : on_failure(l, ev, fx);
    case LEGACY_PH_CLOSE_GET:
        if (ev->code == MUSTER_ENOENT)
            return legacy_close_nothing(l, fx);
        return ev->code == 0 ? take_doc(l, ev, fx) : on_failure(l, ev, fx);
    case LEGACY_PH_LOOK_WAIT:
    case LEGACY_PH_CALL_WAIT:
    case LEGACY_PH_PEERS_WAIT:
    case LEGACY_PH_FINAL_WAIT:
    case LEGACY_PH_FREE_WAIT:
    case LEGACY_PH_MEMBER_WAIT:
        if (ev->code == 0 || ev->code == MUSTER_ETIMEDOUT || ev->code == MUSTER_ESTATE)
            return machine_phases_on_waited(l, ev, fx);
        return on_failure(l, ev, fx);
    case LEGACY_PH_MAKE_PREFIX:
    case LEGACY_PH_MAKE_RUN:
    case LEGACY_PH_MAKE_RDZV:
    case LEGACY_PH_MAKE_COUNTER:
        if (ev->code == 0)
            return legacy_make_next(l, fx);
        break;
    }
    if (ev->code == 0)
        return machine_phases_on_done(l, ev, fx);
    if (ev->code == MUSTER_EEXIST)
        return on_lost(l, ev, fx);
    if (ev->code == MUSTER_ENOENT && l->phase == LEGACY_PH_CREATE)
        l->made = false; /* The tree has expired: make it again. */
    return on_failure(l, ev, fx);
}

int legacy_on_timer(struct legacy *l, struct legacy_fx *fx)
{
    switch ((int)l->phase) {
    case LEGACY_PH_RETRY:
        return legacy_again(l, fx);
    case LEGACY_PH_JOIN_DELAY:
        return legacy_get(l, fx, LEGACY_PH_JOIN_GET);
    case LEGACY_PH_CALL_DELAY:
        return legacy_get(l, fx, LEGACY_PH_CALL_GET);
    case LEGACY_PH_CONFIRM_DELAY:
        return legacy_get(l, fx, LEGACY_PH_CONFIRM_GET);
    case LEGACY_PH_ANNOUNCE_DELAY:
        return legacy_get(l, fx, LEGACY_PH_ANNOUNCE_GET);
    case LEGACY_PH_MEMBER_DELAY:
        return legacy_get(l, fx, LEGACY_PH_MEMBER_GET);
    case LEGACY_PH_CLOSE_DELAY:
        return legacy_get(l, fx, LEGACY_PH_CLOSE_GET);
    }
    return 0;
}
