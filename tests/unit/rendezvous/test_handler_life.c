/* test_handler_life.c - the life of a handler: what is asked of its implementation, and
 * what the agent is told, in every order of requests and answers. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/rng.h"
#include "rendezvous/core/handler_life.h"

static const char *const effect_names[] = {
    [LIFE_DO_OPEN] = "open",       [LIFE_DO_DROP] = "drop",
    [LIFE_DO_JOIN] = "join",       [LIFE_DO_RENAME] = "rename",
    [LIFE_DO_FIND] = "find",       [LIFE_DO_LEAVE] = "leave",
    [LIFE_DO_CLOSE] = "close",     [LIFE_DO_RETIRE] = "retire",
    [LIFE_DO_COUNT] = "count",     [LIFE_NOTIFY_NEXT] = "NEXT",
    [LIFE_NOTIFY_CLOSE] = "CLOSE", [LIFE_NOTIFY_LEAVE] = "LEAVE",
    [LIFE_NOTIFY_STOP] = "STOP",   [LIFE_NOTIFY_NEWS] = "NEWS",
};

/* ---- Stories ---- */

static const struct {
    const char *word;
    struct life_event ev;
} words[] = {
    { "next", { .kind = LIFE_NEXT, .inside = true } },
    { "cancel", { .kind = LIFE_CANCEL, .inside = true } },
    { "close", { .kind = LIFE_CLOSE, .inside = true } },
    { "leave", { .kind = LIFE_LEAVE, .inside = true } },
    { "stop", { .kind = LIFE_STOP, .inside = true } },
    { "end", { .kind = LIFE_STOP, .inside = true, .closes = true } },
    { "end-closed",
      { .kind = LIFE_STOP, .inside = true, .closes = true, .over = true } },
    { "opened", { .kind = LIFE_OPENED } },
    { "broken", { .kind = LIFE_OPENED, .code = MUSTER_ECONN, .text = "no" } },
    { "joined", { .kind = LIFE_JOINED } },
    { "refused", { .kind = LIFE_REFUSED, .code = MUSTER_ECLOSED, .text = "no" } },
    { "refused-inside",
      { .kind = LIFE_REFUSED, .code = MUSTER_ENOMEM, .text = "no", .inside = true } },
    { "unjoined", { .kind = LIFE_REFUSED, .code = MUSTER_ECANCELED, .text = "no" } },
    { "taken", { .kind = LIFE_REFUSED, .code = MUSTER_EEXIST, .text = "no" } },
    { "address", { .kind = LIFE_ADDRESS } },
    { "address-failed", { .kind = LIFE_ADDRESS, .code = MUSTER_EIO, .text = "no" } },
    { "no-address", { .kind = LIFE_NO_ADDRESS } },
    { "left", { .kind = LIFE_LEFT } },
    { "left-inside", { .kind = LIFE_LEFT, .inside = true } },
    { "closed", { .kind = LIFE_CLOSED } },
    { "close-failed", { .kind = LIFE_CLOSED, .code = MUSTER_ETIMEDOUT, .text = "no" } },
    { "others", { .kind = LIFE_OTHERS, .others = 2 } },
    { "nobody", { .kind = LIFE_OTHERS } },
    { "lost", { .kind = LIFE_NEWS, .news = RDZV_NEWS_LOST } },
    { "waiting", { .kind = LIFE_NEWS, .news = RDZV_NEWS_WAITING } },
    { "evicted", { .kind = LIFE_NEWS, .news = RDZV_NEWS_EVICTED } },
    { "run-closed", { .kind = LIFE_NEWS, .news = RDZV_NEWS_CLOSED } },
    { "away",
      { .kind = LIFE_NEWS,
        .news = RDZV_NEWS_BACKEND,
        .again = true,
        .code = MUSTER_ECONN,
        .text = "away" } },
    { "heard", { .kind = LIFE_HEARD } },
    { "timer", { .kind = LIFE_TIMER } },
};

static struct life_event event_of(const char *word, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strlen(words[i].word) == n && strncmp(words[i].word, word, n) == 0)
            return words[i].ev;
    fail_msg("no event %.*s", (int)n, word);
    abort();
}

static void put_effects(char *out, size_t size, const struct life_fx *fx)
{
    for (size_t i = 0; i < fx->count; i++) {
        const struct life_effect *e = &fx->at[i];
        const size_t n = strlen(out);

        (void)snprintf(out + n, size - n, "%s%s", n ? " " : "", effect_names[e->kind]);
        if (e->kind >= LIFE_NOTIFY_NEXT && e->err->code)
            (void)snprintf(out + strlen(out), size - strlen(out), "=%s",
                           muster_code_name(e->err->code) + strlen("MUSTER_"));
    }
}

/* A number among the words lets that many milliseconds pass. */
static void play(const char *story, bool lingers, char *out, size_t size)
{
    struct handler_life l;
    uint64_t now = 1000;

    *out = '\0';
    life_init(&l, "run", NULL, 15000, lingers);
    for (const char *p = story; *p; p += strspn(p, " ")) {
        const size_t n = strcspn(p, " ");

        if (*p >= '0' && *p <= '9') {
            now += strtoul(p, NULL, 10);
        } else {
            struct life_event ev = event_of(p, n);
            struct life_fx fx;

            ev.now_ms = now;
            life_step(&l, &ev, &fx);
            put_effects(out, size, &fx);
        }
        p += n;
    }
}

static void stories(void **state)
{
    static const struct {
        const char *story, *effects;
        bool lingers;
    } rows[] = {
        /* A start, a restart, the end. */
        { "next opened joined address", "open drop join find NEXT" },
        { "next opened joined address next joined address",
          "open drop join find NEXT drop join find NEXT" },
        { "next opened joined address stop left",
          "open drop join find NEXT leave STOP" },
        { "next opened joined address end closed",
          "open drop join find NEXT close STOP" },
        { "next opened refused", "open drop join NEXT=ECLOSED" },
        { "next opened refused-inside timer", "open drop join NEXT=ENOMEM" },
        { "next opened joined address-failed", "open drop join find NEXT=EIO" },
        { "next broken next timer", "open NEXT=ECONN NEXT=ECONN" },
        /* The round falls apart before the workers' address is known. */
        { "next opened joined lost joined address",
          "open drop join find drop join find NEXT" },
        { "next opened joined evicted", "open drop join find drop join" },
        { "next opened joined no-address", "open drop join find drop join" },
        { "next opened joined run-closed", "open drop join find drop NEXT=ECLOSED" },
        { "next opened joined address lost run-closed",
          "open drop join find NEXT NEWS NEWS" },
        /* A node waits: that is news only for an agent that has a round. */
        { "next opened joined waiting address timer", "open drop join find NEXT NEWS" },
        { "next opened joined waiting lost joined address timer",
          "open drop join find drop join find NEXT" },
        { "next opened joined waiting address-failed timer",
          "open drop join find NEXT=EIO" },
        { "next opened joined address waiting", "open drop join find NEXT NEWS" },
        /* Another node has our name: we take a new one, three times at most. */
        { "next opened taken joined address", "open drop join rename find NEXT" },
        { "next opened taken taken taken taken",
          "open drop join rename rename rename NEXT=EEXIST" },
        { "next opened cancel taken left", "open drop join leave NEXT=ECANCELED" },
        /* Canceled at each point. */
        { "next cancel timer opened", "open drop NEXT=ECANCELED" },
        { "next opened cancel unjoined left", "open drop join leave NEXT=ECANCELED" },
        { "next opened cancel joined left", "open drop join leave NEXT=ECANCELED" },
        { "next opened joined cancel timer left address",
          "open drop join find drop leave NEXT=ECANCELED" },
        { "next opened cancel cancel unjoined next",
          "open drop join leave NEXT=ECANCELED "
          "drop join" },
        { "next cancel timer next opened", "open drop NEXT=ECANCELED drop join" },
        { "cancel timer", "" },
        /* Leaving. */
        { "leave timer", "LEAVE" },
        { "next leave timer timer", "open drop NEXT=ECANCELED LEAVE" },
        { "next opened joined address leave left",
          "open drop join find NEXT leave LEAVE" },
        { "next opened joined address leave left-inside timer",
          "open drop join find NEXT leave LEAVE" },
        { "next opened leave unjoined left",
          "open drop join leave NEXT=ECANCELED LEAVE" },
        /* Closing, before it is open and after. */
        { "close opened closed", "open close CLOSE" },
        { "close broken", "open CLOSE=ECONN" },
        { "close end opened closed timer", "open close CLOSE STOP" },
        { "end close opened closed timer", "open close CLOSE STOP" },
        { "end opened close-failed", "open close STOP=ETIMEDOUT" },
        { "end broken", "open STOP=ECONN" },
        { "next opened joined address close end closed timer",
          "open drop join find NEXT close CLOSE STOP" },
        { "next opened joined address end close closed timer",
          "open drop join find NEXT close CLOSE STOP" },
        { "next broken end timer", "open NEXT=ECONN STOP=ECONN" },
        { "next broken stop timer", "open NEXT=ECONN STOP" },
        { "stop timer", "STOP" },
        { "next opened joined address end-closed timer",
          "open drop join find NEXT STOP" },
        { "next opened cancel end-closed timer timer",
          "open drop join leave NEXT=ECANCELED STOP" },
        { "next opened leave end-closed timer timer timer",
          "open drop join leave NEXT=ECANCELED LEAVE STOP" },
        { "next opened stop unjoined left",
          "open drop join leave NEXT=ECANCELED STOP" },
        { "next opened end unjoined left closed",
          "open drop join leave close NEXT=ECANCELED STOP" },
        /* A host waits until the others have read that the run is over, but not for
         * ever. */
        { "next opened end unjoined closed timer nobody",
          "open drop join leave close NEXT=ECANCELED drop retire count STOP", true },
        { "close end opened closed timer others 1 timer others 20 timer nobody",
          "open close drop retire CLOSE count count count STOP", true },
        { "end opened closed timer others 6000 timer others",
          "open close drop retire count count STOP", true },
        { "end opened close-failed", "open close STOP=ETIMEDOUT", true },
        /* A store that is unreachable for a moment is not news; one that stays so
         * is. */
        { "next opened joined address away 14000 timer heard 2000 timer",
          "open drop join find NEXT" },
        { "next opened joined address away 15000 timer 15000 timer",
          "open drop join find NEXT NEWS=ECONN" },
        { "next opened joined address away evicted 15000 timer",
          "open drop join find NEXT NEWS NEWS=ECONN" },
        { "next opened joined address away stop left 15000 timer lost",
          "open drop join find NEXT leave STOP" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char out[512];

        play(rows[i].story, rows[i].lingers, out, sizeof out);
        if (strcmp(out, rows[i].effects) != 0)
            fail_msg("%s:\n  %s\nexpected\n  %s", rows[i].story, out, rows[i].effects);
    }
}

/* ---- At random: in every order each request gets its answer ---- */

/* What the agent waits for, and what the implementation was asked for and has not
 * answered. */
struct model {
    struct handler_life l;
    struct rng rng;
    uint64_t now;
    bool next, close, leave, stop, stopped; /* the agent waits for these */
    bool open, joining, finding, leaving, closing,
        counting; /* the implementation has to answer these */
    bool opened, broken;
    unsigned depth;
};

static void model_feed(struct model *m, struct life_event ev);

static bool chance(struct model *m, unsigned percent)
{
    return rng_below(&m->rng, 100) < percent;
}

static void agent_acts(struct model *m)
{
    struct life_event ev = { .inside = true };

    if (m->stop || m->stopped)
        return;
    switch (rng_below(&m->rng, 6)) {
    case 0:
    case 1:
        if (m->next)
            return;
        m->next = true;
        ev.kind = LIFE_NEXT;
        break;
    case 2:
        ev.kind = LIFE_CANCEL;
        break;
    case 3:
        if (m->close)
            return;
        m->close = true;
        ev.kind = LIFE_CLOSE;
        break;
    case 4:
        if (m->leave)
            return;
        m->leave = true;
        ev.kind = LIFE_LEAVE;
        break;
    default:
        if (!chance(m, 30))
            return;
        m->stop = true;
        ev.kind = LIFE_STOP;
        ev.closes = chance(m, 50);
        ev.over = chance(m, 20);
        break;
    }
    model_feed(m, ev);
}

static void told(struct model *m, bool *waits)
{
    assert_true(*waits);
    *waits = false;
    if (m->depth < 4 && chance(m, 50))
        agent_acts(m); /* As agents do, it acts from inside the callback. */
}

static void model_perform(struct model *m, const struct life_effect *e, bool inside)
{
    if (e->kind >= LIFE_DO_JOIN && e->kind <= LIFE_DO_COUNT)
        assert_true(m->opened && !m->stopped);
    if (e->kind >= LIFE_NOTIFY_NEXT && e->kind <= LIFE_NOTIFY_STOP)
        assert_false(inside);
    switch (e->kind) {
    case LIFE_DO_OPEN:
        assert_false(m->open || m->opened || m->broken);
        m->open = true;
        return;
    case LIFE_DO_DROP:
        m->finding = false;
        return;
    case LIFE_DO_JOIN:
    case LIFE_DO_RENAME:
        assert_false(m->finding || m->joining);
        m->joining = true;
        return;
    case LIFE_DO_FIND:
        assert_false(m->joining || m->finding);
        m->finding = true;
        return;
    case LIFE_DO_LEAVE:
        m->leaving = true;
        return;
    case LIFE_DO_CLOSE:
        m->closing = true;
        return;
    case LIFE_DO_RETIRE:
        return;
    case LIFE_DO_COUNT:
        m->counting = true;
        return;
    case LIFE_NOTIFY_NEXT:
        told(m, &m->next);
        return;
    case LIFE_NOTIFY_CLOSE:
        told(m, &m->close);
        return;
    case LIFE_NOTIFY_LEAVE:
        told(m, &m->leave);
        return;
    case LIFE_NOTIFY_STOP:
        assert_true(m->stop);
        m->stop = false;
        m->stopped = true;
        return;
    case LIFE_NOTIFY_NEWS:
        return;
    }
}

static void model_feed(struct model *m, struct life_event ev)
{
    struct life_fx fx;

    ev.now_ms = m->now;
    m->depth++;
    life_step(&m->l, &ev, &fx);
    for (size_t i = 0; i < fx.count; i++) {
        const bool is_last = i + 1 == fx.count;

        if (fx.at[i].kind >= LIFE_NOTIFY_NEXT && fx.at[i].kind <= LIFE_NOTIFY_STOP)
            assert_true(is_last);
        model_perform(m, &fx.at[i], ev.inside);
    }
    m->depth--;
}

/* Answers one of the open requests to the implementation, or lets something happen. */
static void engine_acts(struct model *m)
{
    struct life_event ev = { .text = "why", .code = chance(m, 15) ? MUSTER_EIO : 0 };

    if (m->open) {
        m->open = false;
        m->opened = ev.code == 0;
        m->broken = !m->opened;
        ev.kind = LIFE_OPENED;
    } else if (m->joining && m->leaving && chance(m, 80)) {
        m->joining = false; /* A LEAVE ends the JOIN first. */
        ev.kind = LIFE_REFUSED;
        ev.code = MUSTER_ECANCELED;
    } else if (m->joining && chance(m, 50)) {
        m->joining = false;
        ev.kind = ev.code ? LIFE_REFUSED : LIFE_JOINED;
        if (ev.code && chance(m, 60))
            ev.code = MUSTER_EEXIST;
    } else if (m->finding && chance(m, 60)) {
        m->finding = false;
        ev.kind = chance(m, 20) ? LIFE_NO_ADDRESS : LIFE_ADDRESS;
    } else if (m->leaving && !m->joining && chance(m, 50)) {
        m->leaving = false;
        ev.kind = LIFE_LEFT;
    } else if (m->closing && chance(m, 50)) {
        m->closing = false;
        ev.kind = LIFE_CLOSED;
    } else if (m->counting) {
        m->counting = false;
        ev.kind = LIFE_OTHERS;
        ev.others = chance(m, 50);
    } else if (m->opened && chance(m, 30)) {
        ev.kind = chance(m, 80) ? LIFE_NEWS : LIFE_HEARD;
        ev.news = (enum rdzv_news)(rng_below(&m->rng, 5));
        ev.again = chance(m, 50);
    } else {
        ev.kind = LIFE_TIMER;
    }
    model_feed(m, ev);
}

static void every_request_is_answered(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5000; seed++) {
        struct model m = { .now = 1000 };

        rng_init(&m.rng, seed);
        life_init(&m.l, "run", NULL, 15000, seed % 2);
        for (size_t i = 0; i < 60; i++) {
            m.now += rng_below(&m.rng, 30);
            if (chance(&m, 40))
                agent_acts(&m);
            else
                engine_acts(&m);
        }
        if (!m.stop && !m.stopped) {
            m.stop = true;
            model_feed(&m, (struct life_event){ .kind = LIFE_STOP,
                                                .inside = true,
                                                .closes = chance(&m, 50) });
        }
        for (size_t i = 0; i < 400 && !m.stopped; i++) {
            m.now += 30;
            engine_acts(&m);
        }
        if (!m.stopped || m.next || m.close || m.leave)
            fail_msg("seed %llu: not told: stop %d, next %d, close %d, leave %d",
                     (unsigned long long)seed, m.stop, m.next, m.close, m.leave);
        assert_true(life_deadline(&m.l) == MONO_NEVER);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stories),
        cmocka_unit_test(every_request_is_answered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
