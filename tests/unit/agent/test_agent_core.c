/* test_agent_core.c - the agent's decisions as transcripts: events in, effects out. */
#include "testing.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>

#include "agent/core/agent_core.h"
#include "base/buf.h"

static const char *const fx_names[] = {
    [AGENT_FX_JOIN] = "join",
    [AGENT_FX_CANCEL_JOIN] = "cancel",
    [AGENT_FX_ASSIGN] = "assign",
    [AGENT_FX_START] = "start",
    [AGENT_FX_SIGNAL] = "signal",
    [AGENT_FX_LEFTOVERS] = "leftovers",
    [AGENT_FX_KILL_ALL] = "kill-all",
    [AGENT_FX_DRAIN] = "drain",
    [AGENT_FX_JUDGE] = "judge",
    [AGENT_FX_BARRIER] = "barrier",
    [AGENT_FX_LEAVE] = "leave",
    [AGENT_FX_FINISH] = "finish",
    [AGENT_FX_LOG_SIGNAL] = "say-signal",
    [AGENT_FX_LOG_WAITING] = "say-waiting",
    [AGENT_FX_LOG_KILL] = "say-kill",
    [AGENT_FX_LOG_ABANDONED] = "say-abandoned",
    [AGENT_FX_LOG_FAILED] = "say-failed",
    [AGENT_FX_LOG_SUCCEEDED] = "say-succeeded",
    [AGENT_FX_LOG_TERMINATED] = "say-terminated",
    [AGENT_FX_LOG_BARRIER] = "say-barrier",
    [AGENT_FX_LOG_NO_BARRIER] = "say-no-barrier",
};

/* One effect as a word: "signal1:15", "start0", "leave+close", "finish0". */
static void show(struct buf *out, const struct agent_core_fx *f)
{
    assert_int_equal(buf_printf(out, " %s", fx_names[f->kind]), 0);
    switch (f->kind) {
    case AGENT_FX_START:
        buf_printf(out, "%d", (int)f->attempt);
        break;
    case AGENT_FX_SIGNAL:
    case AGENT_FX_LOG_KILL:
        buf_printf(out, "%d:%d", (int)f->worker, f->sig);
        break;
    case AGENT_FX_LEAVE:
        buf_append_str(out, f->close ? "+close" : "");
        break;
    case AGENT_FX_FINISH:
        buf_printf(out, "%d", f->code);
        break;
    case AGENT_FX_LOG_FAILED:
        buf_append_str(out, f->final ? "+final" : "");
        break;
    default:
        break;
    }
}

struct play {
    const char *says;
    const char *script; /* words: see feed_word(); settings first */
    const char *want;
};

static void feed_word(struct agent_core *g, const char *word, uint64_t *ms,
                      struct buf *out)
{
    static const struct {
        const char *word;
        enum agent_core_event_kind kind;
    } words[] = {
        { "begin", AGENT_EV_BEGIN },
        { "joined", AGENT_EV_JOINED },
        { "assigned", AGENT_EV_ASSIGNED },
        { "started", AGENT_EV_STARTED },
        { "fatal", AGENT_EV_FATAL },
        { "leftovers", AGENT_EV_LEFTOVERS },
        { "empty", AGENT_EV_EMPTY },
        { "drained", AGENT_EV_DRAINED },
        { "waits", AGENT_EV_NODE_WAITS },
        { "lost", AGENT_EV_NODE_LOST },
        { "next-round", AGENT_EV_NEXT_ROUND },
        { "evicted", AGENT_EV_EVICTED },
        { "cut-off", AGENT_EV_CUT_OFF },
        { "stuck", AGENT_EV_STUCK },
        { "opened", AGENT_EV_BARRIER_DONE },
        { "left", AGENT_EV_LEFT },
        { "barrier-short", AGENT_EV_BARRIER_SHORT },
        { "hang", AGENT_EV_HANG },
        { "peer-failed", AGENT_EV_PEER_FAILED },
        { "verdict", AGENT_EV_VERDICT },
        { "judge-gone", AGENT_EV_JUDGE_GONE },
        { "judge-back", AGENT_EV_JUDGE_BACK },
    };
    struct agent_core_event ev = { 0 };
    struct agent_core_fx_list fx = { 0 };
    int worker, code;
    char sign;

    if (sscanf(word, "exit%d%c%d", &worker, &sign, &code) == 3) {
        ev.kind = AGENT_EV_EXIT;
        ev.worker = worker;
        ev.code = sign == '-' ? -code : code;
    } else if (sscanf(word, "sig%d", &code) == 1) {
        ev.kind = AGENT_EV_SIGNAL;
        ev.code = code;
    } else if (strcmp(word, "hang+stop") == 0) {
        ev.kind = AGENT_EV_HANG;
        ev.code = 1;
    } else if (strcmp(word, "cut-off+wait") == 0) {
        ev.kind = AGENT_EV_CUT_OFF;
        ev.code = 1;
    } else if (sscanf(word, "restart%d", &worker) == 1) {
        ev.kind = AGENT_EV_RESTART;
        ev.worker = worker;
    } else if (sscanf(word, "uncounted%d", &worker) == 1) {
        ev.kind = AGENT_EV_RESTART;
        ev.worker = worker;
        ev.code = 1;
    } else if (sscanf(word, "counted%d", &worker) == 1) {
        ev.kind = AGENT_EV_ASSIGNED;
        ev.worker = worker;
        ev.code = 1;
    } else if (strstr(word, "ms") && sscanf(word, "%d", &code) == 1) {
        ev.kind = AGENT_EV_TIMEOUT;
        *ms += (uint64_t)code;
    } else if (sscanf(word, "%ds", &code) == 1) {
        ev.kind = AGENT_EV_TIMEOUT;
        *ms += (uint64_t)code * 1000;
    } else {
        size_t i = 0;
        while (i < ARRAY_LEN(words) && strcmp(words[i].word, word) != 0)
            i++;
        if (i == ARRAY_LEN(words))
            fail_msg("no such word: %s", word);
        ev.kind = words[i].kind;
    }
    ev.now.mono_ms = *ms;
    int rc;

    TAKE_STEP(rc, agent_core_step(g, &ev, &fx), print_bytes(0, g, sizeof *g));
    assert_int_equal(rc, 0);
    for (size_t i = 0; i < fx.count; i++)
        show(out, &fx.items[i]);
    agent_core_fx_fini(&fx);
}

#define UP    "begin joined assigned started "
#define UP_FX " join assign start0"

static const struct play plays[] = {
    { "all is well", UP "exit1=0 exit0=0 empty drained opened left",
      UP_FX " drain say-succeeded barrier leave+close finish0" },
    { "an early end is no news", UP "exit0=0", UP_FX },
    { "workers end before all have been told of",
      "begin joined assigned exit0=0 exit1=0 empty started drained",
      UP_FX " drain say-succeeded barrier" },
    { "the first is gone before the second is there",
      "begin joined assigned exit0=0 empty started exit1=1 empty drained verdict left",
      UP_FX " leftovers drain judge say-failed+final leave+close finish1" },
    { "one fails, no restarts", UP "exit1=3 100ms exit0-15 empty drained verdict left",
      UP_FX " signal0:15 leftovers drain judge say-failed+final leave+close finish1" },
    { "all fail together, and say so themselves",
      UP "exit1=3 exit0=1 empty drained verdict left",
      UP_FX " drain judge say-failed+final leave+close finish1" },
    { "they leave something behind", UP "exit1=3 exit0=1 leftovers empty drained",
      UP_FX " leftovers drain judge" },
    { "the others have 100 ms for that, and the restart's grace in all",
      "grace=1 " UP "exit1=3 99ms 1ms 900ms exit0-9",
      UP_FX " signal0:15 leftovers say-kill0:15 kill-all" },
    { "no patience where a restart waits", "restarts=1 " UP "exit1=3 exit0=1 empty",
      UP_FX " signal0:15 leftovers drain" },
    { "patience is over when somebody asks for the end",
      UP "exit1=3 sig2 exit0-2 empty", UP_FX " say-signal signal0:2 leftovers drain" },
    { "one fails, one restart",
      "restarts=1 " UP "exit1=3 exit0-15 empty drained joined assigned started "
      "exit0=0 exit1=0 empty drained opened left",
      UP_FX " signal0:15 leftovers drain judge say-failed join assign start1 drain "
            "say-succeeded barrier leave+close finish0" },
    { "a failure while starting waits",
      "begin joined assigned exit0=1 started 100ms exit1-15 empty drained verdict left",
      UP_FX " signal1:15 leftovers drain judge say-failed+final leave+close finish1" },
    { "a worker will not go", UP "exit1=3 100ms 30s exit0-9 empty drained verdict left",
      UP_FX " signal0:15 leftovers say-kill0:15 kill-all drain judge say-failed+final "
            "leave+close finish1" },
    { "a worker takes its time, and is named once",
      UP "exit1=3 100ms 1s 1s 1s exit0-15 empty",
      UP_FX " signal0:15 leftovers say-waiting drain" },
    { "restarts have a time of their own",
      "grace=5 " UP "exit1=3 100ms 4s 1s exit0-9 empty",
      UP_FX " signal0:15 leftovers say-waiting say-kill0:15 kill-all drain" },
    { "one that is too short to tell of", "grace=2 " UP "waits 2s exit0-9 exit1-9",
      UP_FX " signal0:15 signal1:15 say-kill0:15 say-kill1:15 kill-all" },
    { "none at all", "grace=0 " UP "exit1=3 exit0-9 empty",
      UP_FX " signal0:15 leftovers say-kill0:15 kill-all drain" },
    { "what a worker left is not named",
      UP "exit1=3 100ms exit0-15 leftovers 2s empty drained",
      UP_FX " signal0:15 leftovers leftovers drain judge" },
    { "a signal has its own time, and tells, too",
      "grace=0 " UP "sig15 2s 28s exit0-9 exit1-9",
      UP_FX " say-signal signal0:15 signal1:15 say-waiting say-kill0:15 say-kill1:15 "
            "kill-all" },
    { "nor by SIGKILL", UP "exit1=3 100ms 30s 30s drained verdict left",
      UP_FX " signal0:15 leftovers say-kill0:15 kill-all say-abandoned drain "
            "judge say-failed+final leave+close finish1" },
    { "a daemon outlives success", UP "exit0=0 exit1=0 leftovers 5s empty drained",
      UP_FX " leftovers kill-all drain say-succeeded barrier" },
    { "a newcomer: not counted", UP "waits exit0-15 exit1-15 empty drained",
      UP_FX " signal0:15 signal1:15 drain join" },
    { "a restart of the round before decides nothing about the next one",
      "restarts=1 begin joined counted0 started waits exit0-15 exit1-15 empty drained "
      "restart0 joined counted0 started exit1=3 exit0-15 empty drained verdict left",
      UP_FX " signal0:15 signal1:15 drain join assign start0 signal0:15 leftovers "
            "drain judge say-failed+final leave+close finish1" },
    { "a failure that was counted here, and should not have been",
      "restarts=1 " UP "exit1=3 exit0-15 empty drained uncounted0 joined assigned",
      UP_FX " signal0:15 leftovers drain judge say-failed join assign start0" },
    { "a node is lost", UP "lost exit0-15 exit1-15 empty drained",
      UP_FX " signal0:15 signal1:15 drain join" },
    { "a node is lost before ranks are known", "begin joined lost assigned",
      " join assign join" },
    { "a node is lost while workers start",
      "begin joined assigned lost started exit0-15 exit1-15 empty drained",
      UP_FX " signal0:15 signal1:15 drain join" },
    { "a node is lost while a failure is judged",
      "begin joined counted0 started exit0=1 100ms exit1-15 empty drained lost verdict "
      "left",
      UP_FX " signal1:15 leftovers drain judge say-failed+final leave+close finish1" },
    { "the others go on without this node while ranks are agreed on",
      "begin joined evicted", " join assign join" },
    { "the same while workers start",
      "begin joined assigned evicted started exit0-9 exit1-9 empty drained",
      UP_FX " signal0:15 signal1:15 kill-all drain join" },
    { "the same at work: no worker of the old world beside the new one",
      UP "evicted exit0-9 exit1-9 empty drained",
      UP_FX " signal0:15 signal1:15 kill-all drain join" },
    { "the same while the workers have time to end",
      UP "waits evicted exit0-9 exit1-9 empty drained",
      UP_FX " signal0:15 signal1:15 kill-all drain join" },
    { "the same while the last output is passed on",
      UP "exit0=0 exit1=0 empty evicted drained", UP_FX " drain join" },
    { "the same in the barrier", UP "exit0=0 exit1=0 empty drained evicted",
      UP_FX " drain say-succeeded barrier join" },
    { "a newcomer while ranks are agreed on", "begin joined waits assigned",
      " join assign join" },
    { "the store is gone", UP "fatal exit0-15 exit1-15 empty drained left",
      UP_FX " signal0:15 signal1:15 drain leave+close finish1" },
    { "the join fails", "begin fatal left", " join leave+close finish1" },
    { "a hang is a failure", "restarts=1 " UP "hang exit0-15 exit1-15 empty drained",
      UP_FX " signal0:15 signal1:15 drain judge say-failed join" },
    { "a hang that is to end the job",
      "restarts=1 " UP "hang+stop exit0-15 exit1-15 empty drained verdict left",
      UP_FX " signal0:15 signal1:15 drain judge say-failed+final leave+close finish1" },
    { "stuck: as torchrun, no failure",
      "restarts=3 " UP "stuck exit0-15 exit1-15 empty drained left",
      UP_FX " signal0:15 signal1:15 drain say-terminated leave+close finish0" },
    { "Ctrl-C", UP "sig2 exit0-2 exit1-2 empty drained left",
      UP_FX " say-signal signal0:2 signal1:2 drain leave finish1" },
    { "Ctrl-C twice", UP "sig2 sig2 exit0-9 exit1-9 empty drained left",
      UP_FX " say-signal signal0:2 signal1:2 say-signal say-kill0:2 say-kill1:2 "
            "kill-all drain leave finish1" },
    { "Ctrl-C, then SIGTERM, then Ctrl-C", UP "sig2 sig15 sig2 exit0-9 exit1-9 empty",
      UP_FX " say-signal signal0:2 signal1:2 say-signal signal0:15 signal1:15 "
            "say-signal say-kill0:15 say-kill1:15 kill-all drain" },
    { "Ctrl-C of a job that is told to end", UP "sig15 sig2 exit0-15 exit1-15 empty",
      UP_FX
      " say-signal signal0:15 signal1:15 say-signal signal0:15 signal1:15 drain" },
    { "SIGTERM three times", UP "sig15 sig15 sig15 exit0-9 exit1-9 empty drained left",
      UP_FX " say-signal signal0:15 signal1:15 say-signal signal0:15 signal1:15 "
            "say-signal say-kill0:15 say-kill1:15 kill-all drain leave finish1" },
    { "a signal, and nobody goes",
      "shutdown=2 " UP "sig15 2s exit0-9 exit1-9 empty drained left",
      UP_FX
      " say-signal signal0:15 signal1:15 say-kill0:15 say-kill1:15 kill-all drain "
      "leave finish1" },
    { "a signal, and sys.maxsize seconds to go",
      "shutdown=9223372036854775807 " UP "sig15 99999s exit0=0 exit1=0 empty drained",
      UP_FX " say-signal signal0:15 signal1:15 say-waiting drain leave" },
    { "a signal, and all the time there is",
      "shutdown=never " UP "sig15 99999s exit0=0 exit1=0 empty drained",
      UP_FX " say-signal signal0:15 signal1:15 say-waiting drain leave" },
    { "a signal between attempts",
      UP "waits exit0-15 exit1-15 empty drained sig15 left",
      UP_FX " signal0:15 signal1:15 drain join say-signal cancel leave finish1" },
    { "a signal in the barrier", UP "exit0=0 exit1=0 empty drained sig15 left",
      UP_FX " drain say-succeeded barrier say-barrier leave finish1" },
    { "a signal while a failure is dealt with",
      UP "exit0=1 100ms sig15 exit1-15 empty drained left",
      UP_FX " signal1:15 leftovers say-signal signal1:15 drain leave finish1" },
    { "a member is lost in the barrier",
      UP "exit0=0 exit1=0 empty drained lost 1s left",
      UP_FX " drain say-succeeded barrier say-no-barrier leave+close finish0" },
    { "a member is lost while the last output is passed on",
      UP "exit0=0 exit1=0 empty lost drained 1s left",
      UP_FX " drain say-succeeded barrier say-no-barrier leave+close finish0" },
    { "a member is lost while a daemon is ended",
      UP "exit0=0 exit1=0 leftovers lost empty drained 1s left",
      UP_FX
      " leftovers drain say-succeeded barrier say-no-barrier leave+close finish0" },
    { "the others go on while a daemon is ended",
      UP "exit0=0 exit1=0 leftovers evicted empty drained",
      UP_FX " leftovers kill-all drain join" },
    { "cut off while a daemon is ended",
      UP "exit0=0 exit1=0 leftovers cut-off empty drained left",
      UP_FX " leftovers kill-all drain leave+close finish1" },
    { "cut off at work", UP "cut-off exit0-9 exit1-9 empty drained left",
      UP_FX " signal0:15 signal1:15 kill-all drain leave+close finish1" },
    { "done, and the others begin again", UP "exit0=0 exit1=0 empty drained next-round",
      UP_FX " drain say-succeeded barrier join" },
    { "nearly done, and the others begin again",
      UP "exit0=0 exit1=0 empty next-round drained", UP_FX " drain join" },
    { "a signal spares no worker of a node that was put out of the round",
      "begin joined assigned evicted sig15 exit0-9 exit1-9 empty drained left",
      UP_FX " say-signal signal0:15 signal1:15 kill-all drain leave finish1" },
    { "at work, and the others begin again", UP "next-round", UP_FX },
    { "a failure, and the others have gone on without this node",
      UP "exit1=3 100ms exit0-15 empty drained evicted",
      UP_FX " signal0:15 leftovers drain judge say-failed join" },
    { "the same, told while workers are stopped",
      UP "exit1=3 100ms evicted exit0-9 empty drained",
      UP_FX " signal0:15 leftovers kill-all drain judge say-failed join" },
    { "the same, told before they are", UP "exit1=3 evicted exit0-9 empty drained",
      UP_FX " signal0:15 leftovers kill-all drain judge say-failed join" },
    { "a newcomer, and ranks that nobody gives", "begin joined waits 3s",
      " join assign join" },
    { "whoever is missing in the barrier has failed",
      UP "exit0=0 exit1=0 empty drained barrier-short left",
      UP_FX " drain say-succeeded barrier say-no-barrier leave+close finish0" },
    { "whoever is missing has failed before we are in the barrier",
      UP "barrier-short exit0=0 exit1=0 empty drained 1s left",
      UP_FX " drain say-succeeded barrier say-no-barrier leave+close finish0" },
    { "a failure of another node ends the job here too",
      "begin joined counted0 started peer-failed 100ms exit0-15 exit1-15 empty drained "
      "verdict "
      "left",
      UP_FX " signal0:15 signal1:15 drain judge say-failed+final leave+close finish1" },
    { "a failure of another node restarts all",
      "restarts=3 begin joined counted0 started peer-failed exit0-15 exit1-15 empty "
      "drained "
      "restart1 joined counted1 started",
      UP_FX " signal0:15 signal1:15 drain judge join assign start1" },
    { "one fails, and the job's count holds",
      "restarts=3 begin joined counted1 started exit0=1 exit1-15 empty drained "
      "restart2 "
      "joined counted2",
      " join assign start1 signal1:15 leftovers drain judge say-failed join assign "
      "start2" },
    { "the decision comes before the workers are gone",
      "begin joined counted0 started exit0=1 100ms verdict exit1-15 empty drained left",
      UP_FX " signal1:15 leftovers drain judge say-failed+final leave+close finish1" },
    { "no coordinator answers",
      "restarts=1 begin joined counted0 started exit0=1 exit1-15 empty drained 4s",
      UP_FX " signal1:15 leftovers drain judge say-failed join" },
    { "the coordinator's machine is lost while it judges: not counted",
      "restarts=1 begin joined counted0 started exit0=1 exit1-15 empty drained "
      "judge-gone "
      "joined counted0 started",
      UP_FX " signal1:15 leftovers drain judge say-failed join assign start0" },
    { "it is lost before, and workers fail for that",
      "begin joined counted0 started judge-gone exit0=1 100ms exit1-15 empty drained",
      UP_FX " signal1:15 leftovers drain judge say-failed join" },
    { "it was not lost after all",
      "begin joined counted0 started judge-gone judge-back exit0=1 100ms exit1-15 "
      "empty "
      "drained "
      "verdict",
      UP_FX " signal1:15 leftovers drain judge say-failed+final leave+close" },
    { "a node without etcd's majority waits",
      UP "cut-off+wait exit0-9 exit1-9 empty drained joined assigned",
      UP_FX " signal0:15 signal1:15 kill-all drain join assign start0" },
    { "it is cut off while starting",
      "begin joined assigned cut-off+wait started exit0-9 exit1-9 empty drained",
      UP_FX " signal0:15 signal1:15 kill-all drain join" },
    { "it is cut off while ranks are agreed on", "begin joined cut-off+wait",
      " join assign join" },
    { "it is cut off while a failure is judged",
      "begin joined counted0 started exit0=1 100ms exit1-15 empty drained cut-off+wait",
      UP_FX " signal1:15 leftovers drain judge join" },
    { "what was done cut off does not count as done",
      UP "exit0=0 exit1=0 empty cut-off+wait drained left",
      UP_FX " drain leave+close finish1" },
    { "a failure elsewhere while starting",
      "begin joined counted0 peer-failed started 100ms exit0-15 exit1-15 empty drained "
      "verdict",
      UP_FX " signal0:15 signal1:15 drain judge say-failed+final leave+close" },
    { "a newcomer's news is quicker than the failure's",
      "begin joined counted0 started waits peer-failed 100ms exit0-15 exit1-15 empty "
      "drained "
      "verdict",
      UP_FX " signal0:15 signal1:15 drain judge say-failed+final leave+close" },
    { "the job fails while we wait in the barrier",
      "begin joined counted0 started exit0=0 exit1=0 empty drained verdict left",
      UP_FX " drain say-succeeded barrier say-failed+final leave+close finish1" },
    { "the group begins again while we wait in the barrier",
      "restarts=1 begin joined counted0 started exit0=0 exit1=0 empty drained restart1",
      UP_FX " drain say-succeeded barrier join" },
    { "a signal while the failure is judged",
      "begin joined counted0 started exit0=1 100ms exit1-15 empty drained sig15 left",
      UP_FX " signal1:15 leftovers drain judge say-signal leave finish1" },
    { "nobody hears the goodbye", UP "exit0=0 exit1=0 empty drained opened 5s",
      UP_FX " drain say-succeeded barrier leave+close finish0" },
};

static void transcripts(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(plays); i++) {
        const struct play *p = &plays[i];
        struct agent_core_settings set = { .nproc = 2,
                                           .shutdown_ms = 30000,
                                           .restart_ms = 30000 };
        struct agent_core g;
        struct buf out;
        char script[512], *save = NULL;
        uint64_t ms = 1000;

        buf_init(&out, SIZE_MAX);
        snprintf(script, sizeof script, "%s", p->script);
        int number;
        if (sscanf(script, "restarts=%d", &number) == 1)
            set.max_restarts = number;
        long long seconds;
        if (sscanf(script, "shutdown=%lld", &seconds) == 1)
            set.shutdown_ms = ms_of_seconds(seconds);
        if (sscanf(script, "grace=%lld", &seconds) == 1)
            set.restart_ms = ms_of_seconds(seconds);
        if (strncmp(script, "shutdown=never", 14) == 0)
            set.shutdown_ms = MONO_NEVER;
        assert_int_equal(agent_core_init(&g, &set, NULL), 0);
        for (char *w = strtok_r(script, " ", &save); w; w = strtok_r(NULL, " ", &save))
            if (!strchr(w, '=') || strncmp(w, "exit", 4) == 0)
                feed_word(&g, w, &ms, &out);
        buf_u8(&out, 0);
        if (strcmp((const char *)buf_data(&out), p->want) != 0)
            fail_msg("%s:\nwant%s\ngot %s", p->says, p->want,
                     (const char *)buf_data(&out));
        buf_fini(&out);
        agent_core_fini(&g);
    }
}

/* Whatever comes in whatever order: it never asserts, it ends only once, never with
 * workers alive, and a third signal always leads to the end. */
static void any_order(void **state)
{
    uint64_t seed = 12345;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        const struct agent_core_settings set = {
            .nproc = 3, .max_restarts = 2, .shutdown_ms = 2000, .restart_ms = 3000
        };
        struct agent_core g;
        struct agent_core_fx_list fx = { 0 };
        int finished = 0;
        uint64_t ms = 0;

        assert_int_equal(agent_core_init(&g, &set, NULL), 0);
        for (int k = 0; k < 60; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const struct agent_core_event ev = {
                .kind = k == 0 ? AGENT_EV_BEGIN
                               : (enum agent_core_event_kind)(
                                     1 + (seed >> 33) % AGENT_EV_JUDGE_BACK),
                .worker = (int64_t)((seed >> 40) % 3),
                .code = (int)((seed >> 50) % 2) * 15,
                .now = { .mono_ms = ms += (seed >> 45) % 4000 },
            };
            fx.count = 0;
            assert_int_equal(agent_core_step(&g, &ev, &fx), 0);
            for (size_t i = 0; i < fx.count; i++) {
                if (fx.items[i].kind != AGENT_FX_FINISH)
                    continue;
                finished++;
                assert_int_equal(g.phase, AGENT_DONE);
            }
            assert_true(g.alive >= 0 && g.remaining >= 0);
        }
        assert_true(finished <= 1);
        agent_core_fx_fini(&fx);
        agent_core_fini(&g);
    }
}

static void print_name(struct buf *out, const char *name)
{
    for (; *name; name++)
        buf_u8(out, *name == '_' ? '-' : (uint8_t)tolower(*name));
}

/* What leads from one phase to another: "exit*" if it does so in some cases only. */
static void print_edge(struct buf *out, uint32_t phase, uint32_t next, bool *begun)
{
    static const char *const events[] = {
#define EVENT_NAME(name) #name,
        AGENT_EVENTS(EVENT_NAME)
    };
    static const char *const phases[] = {
#define PHASE_NAME(name) #name,
        AGENT_PHASES(PHASE_NAME)
    };
    size_t rows, count = 0;
    const struct agent_transition *table = agent_core_table(&rows);

    for (uint32_t event = 0; event < ARRAY_LEN(events); event++) {
        bool leads = false, elsewhere = false, always = false;

        for (size_t i = 0; i < rows && !always; i++) {
            if (!(table[i].phases & 1u << phase && table[i].events & 1u << event))
                continue;
            leads |= table[i].next == next;
            elsewhere |= table[i].next != next;
            always = !table[i].when;
        }
        if (!leads)
            continue;
        const size_t before = buf_len(out);
        if (count == 0 && !*begun)
            print_name(out, phases[phase]);
        if (count++ == 0) {
            (void)buf_printf(out, "%*s -> ", (int)(9 - (buf_len(out) - before)), "");
            print_name(out, phases[next]);
            (void)buf_printf(out, "%*s", (int)(10 - strlen(phases[next])), "");
        } else {
            (void)buf_append_str(out, ", ");
        }
        print_name(out, events[event]);
        (void)buf_append_str(out, always && !elsewhere ? "" : "*");
        *begun = true;
    }
    if (count)
        buf_u8(out, '\n');
}

static void diagram_in_the_document_is_the_tables(void **state)
{
    struct buf out, page;
    FILE *f = fopen(GOLDEN_DIR "/../../docs/ARCHITECTURE.md", "r");
    size_t n;

    (void)state;
    assert_non_null(f);
    buf_init(&out, SIZE_MAX);
    buf_init(&page, SIZE_MAX);
    (void)buf_append_str(&out, "```\n");
    for (uint32_t phase = AGENT_NEW; phase < AGENT_DONE; phase++) {
        bool begun = false;

        for (uint32_t next = AGENT_JOINING; next <= AGENT_DONE; next++)
            print_edge(&out, phase, next, &begun);
    }
    (void)buf_append_str(&out, "```\n");
    do {
        uint8_t *room = buf_room(&page, 65536);

        n = fread(room, 1, 65536, f);
        buf_commit(&page, n);
    } while (n > 0);
    fclose(f);
    buf_u8(&out, 0);
    buf_u8(&page, 0);
    if (!strstr((const char *)buf_data(&page), (const char *)buf_data(&out))) {
        fputs((const char *)buf_data(&out), stderr); /* cmocka would cut it. */
        fail_msg("docs/ARCHITECTURE.md has another diagram than this one");
    }
    buf_fini(&out);
    buf_fini(&page);
}

static void no_memory(void **state)
{
    (void)state;
    if (step_starves)
        return; /* It has its own way to fail. */
    for (struct failing f = failing_first(); failing_next(&f);) {
        const struct agent_core_settings set = { .nproc = 2 };
        struct agent_core g;
        struct agent_core_fx_list fx = { 0 };
        int rc = agent_core_init(&g, &set, NULL);
        if (rc == 0) {
            rc = agent_core_step(
                &g, &(struct agent_core_event){ .kind = AGENT_EV_BEGIN }, &fx);
            if (rc != 0)
                assert_int_equal(g.phase, AGENT_NEW);
        }
        assert_int_equal(rc, failing_rc(&f));
        agent_core_fx_fini(&fx);
        agent_core_fini(&g);
    }
}

/* What the agent reports of an attempt is written after the step that ends it. */
static void who_was_stopped_is_known_until_the_next_start(void **state)
{
    const struct agent_core_settings set = { .nproc = 2,
                                             .max_restarts = 1,
                                             .restart_ms = 3 };
    struct agent_core g;
    struct buf out;
    uint64_t ms = 0;

    (void)state;
    buf_init(&out, SIZE_MAX);
    assert_int_equal(agent_core_init(&g, &set, NULL), 0);
    for (const char *const *w =
             (const char *const[]){ "begin", "joined", "counted0", "started",
                                    "peer-failed", "restart1", "exit0-15", "exit1-15",
                                    "empty", "drained", NULL };
         *w; w++)
        feed_word(&g, *w, &ms, &out);
    assert_int_equal(g.phase, AGENT_JOINING);
    assert_int_equal(g.stop_sig, 15);
    for (const char *const *w = (const char *const[]){ "joined", "counted1", NULL }; *w;
         w++)
        feed_word(&g, *w, &ms, &out);
    assert_int_equal(g.stop_sig, 0);
    agent_core_fini(&g);
    buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_was_stopped_is_known_until_the_next_start),
        cmocka_unit_test(transcripts),
        cmocka_unit_test(any_order),
        cmocka_unit_test(diagram_in_the_document_is_the_tables),
        cmocka_unit_test(no_memory),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);

    step_starves = true;
    return cmocka_run_group_tests_name("starved", tests, NULL, NULL) + failed;
}
