/* run.c - see run.h. */
#include "job/core/run.h"

#include "base/err.h"
#include "base/mem.h"

struct run {
    char *run_id; /* owned */
    const struct trace *trace;
    struct sessions sessions;
    struct coordinator *seats; /* owned; NULL until a node of ours asks for a seat */
    struct hub *record;        /* owned; NULL until a node tells or asks something */
};

struct run *run_new(struct span run_id, const struct trace *trace)
{
    struct run *r = mem_calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->run_id = mem_strndup((const char *)run_id.p, run_id.n);
    if (!r->run_id) {
        mem_free(r);
        return NULL;
    }
    r->trace = trace;
    sessions_init(&r->sessions);
    return r;
}

void run_free(struct run *r)
{
    if (!r)
        return;
    coordinator_free(r->seats);
    hub_free(r->record);
    sessions_fini(&r->sessions);
    mem_free(r->run_id);
    mem_free(r);
}

void run_fx_fini(struct run_fx *fx)
{
    hub_fx_fini(&fx->record);
    coordinator_fx_fini(&fx->seats);
}

struct coordinator *run_seats(const struct run *r)
{
    return r->seats;
}

const struct hub *run_record(const struct run *r)
{
    return r->record;
}

static int seats_step(struct run *r, const struct run_event *ev,
                      enum coordinator_event_kind kind, struct run_fx *fx,
                      struct muster_error *err)
{
    const struct coordinator_event to = {
        .kind = kind,
        .now = { ev->now.mono_us / 1000, ev->now.wall_us },
        .peer = ev->peer,
        .hung_up = ev->hung_up,
        .msg = ev->seats,
        .value = ev->value,
    };

    if (!r->seats)
        r->seats = coordinator_new(span_str(r->run_id), &r->sessions, r->trace);
    return r->seats ? coordinator_step(r->seats, &to, &fx->seats, err) : err_nomem(err);
}

static int record_step(struct run *r, const struct run_event *ev,
                       enum hub_event_kind kind, struct run_fx *fx,
                       struct muster_error *err)
{
    const struct hub_event to = {
        .kind = kind, .now = ev->now, .peer = ev->peer, .msg = ev->record
    };

    if (!r->record)
        r->record = hub_new(span_str(r->run_id), &r->sessions, r->trace);
    if (!r->record || hub_step(r->record, &to, &fx->record) < 0)
        return err_nomem(err);
    return 0;
}

static int on_time(struct run *r, const struct run_event *ev, struct run_fx *fx,
                   struct muster_error *err)
{
    int rc = 0;

    if (r->record && hub_deadline(r->record) <= ev->now.mono_us)
        rc = record_step(r, ev, HUB_TIMER, fx, err);
    if (r->seats && coordinator_deadline(r->seats) <= ev->now.mono_us / 1000 &&
        seats_step(r, ev, COORDINATOR_TIMER, fx, err) < 0)
        rc = MUSTER_ENOMEM;
    return rc;
}

int run_step(struct run *r, const struct run_event *ev, struct run_fx *fx,
             struct muster_error *err)
{
    fx->record.count = fx->seats.count = 0;
    switch (ev->kind) {
    case RUN_SEATS:
        return seats_step(r, ev, COORDINATOR_MSG, fx, err);
    case RUN_RECORD:
        return record_step(r, ev, HUB_MSG, fx, err);
    case RUN_GONE:
        if (sessions_of(&r->sessions, LINE_SEATS, ev->peer))
            return seats_step(r, ev, COORDINATOR_GONE, fx, err);
        if (sessions_of(&r->sessions, LINE_RECORD, ev->peer))
            return record_step(r, ev, HUB_GONE, fx, err);
        return 0;
    case RUN_SEEN:
        return seats_step(r, ev, COORDINATOR_SEEN, fx, err);
    case RUN_TIMER:
        return on_time(r, ev, fx, err);
    }
    return 0;
}

uint64_t run_deadline(const struct run *r)
{
    const uint64_t record = r->record ? hub_deadline(r->record) : MONO_NEVER;
    const uint64_t seats = r->seats ? coordinator_deadline(r->seats) : MONO_NEVER;

    return MIN_OF(record, seats == MONO_NEVER ? seats : seats * 1000);
}
