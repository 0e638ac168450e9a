/* notice.c - see notice.h. */
#include "policy/core/notice.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#include "base/duration.h"
#include "base/err.h"
#include "base/nearest.h"
#include "base/signal_names.h"

/* A command has a path, a blank or a small letter in it, as no signal has. */
static bool is_signal_like(struct span word)
{
    for (size_t i = 0; i < word.n; i++)
        if (!(word.p[i] >= 'A' && word.p[i] <= 'Z') &&
            !(word.p[i] >= '0' && word.p[i] <= '9'))
            return false;
    return word.n > 0;
}

static int take_signal(const char *option, struct span word, int *sig,
                       struct muster_error *err)
{
    const char *near;

    *sig = signal_number(word);
    if (*sig && *sig != SIGKILL && *sig != SIGSTOP)
        return 0;
    if (*sig)
        return err_set(err, MUSTER_EINVAL, "%s: nobody can handle %.*s", option,
                       (int)word.n, (const char *)word.p);
    near = signal_nearest(word);
    (void)err_set(err, MUSTER_EINVAL, "%s: '%.*s' is no signal", option,
                  (int)MIN_OF(word.n, 80), (const char *)word.p);
    if (near)
        err_add(err, "; did you mean %s?", near);
    return MUSTER_EINVAL;
}

static int take_time(struct span text, uint64_t *ms, struct muster_error *err)
{
    const int rc = duration_parse("--notice", text, 0, ms, err);

    if (rc == 0 && (*ms == 0 || *ms > NOTICE_MOST_MS))
        return err_set(err, MUSTER_EINVAL,
                       "--notice: the time that is left must be between 1ms and 1d");
    return rc;
}

static int take_word(struct notice_sources *s, struct span word, struct span time,
                     struct muster_error *err)
{
    uint64_t ms = 0;
    int sig = 0, rc = time.n ? take_time(time, &ms, err) : 0;

    if (rc == 0 && span_eq(word, span_str("slurm"))) {
        s->slurm = true;
        s->slurm_ms = ms ? ms : NOTICE_SLURM_MS;
        return 0;
    }
    if (rc == 0)
        rc = take_signal("--notice", word, &sig, err);
    if (rc)
        return rc;
    if (s->count == NOTICE_SIGNALS)
        return err_set(err, MUSTER_EINVAL, "--notice: more than %u signals",
                       NOTICE_SIGNALS);
    s->signals[s->count].sig = sig;
    s->signals[s->count++].ms = ms;
    return 0;
}

int notice_parse(struct notice_sources *out, const char *text, struct muster_error *err)
{
    const struct span first =
        text ? span_of(text, strcspn(text, ":,")) : span_of("", 0);
    struct nearest near = { 0 };
    int rc = 0;

    *out = (struct notice_sources){ 0 };
    if (!text || !*text)
        return 0;
    nearest_try(&near, first, "slurm");
    if (!is_signal_like(first) && !span_eq(first, span_str("slurm"))) {
        if (near.word)
            return err_set(err, MUSTER_EINVAL,
                           "--notice=%.100s: neither signals nor slurm; did you mean "
                           "slurm? A command of that name is written with its path",
                           text);
        out->command = text;
        return 0;
    }
    for (const char *at = text; rc == 0 && at;) {
        const size_t n = strcspn(at, ","), word = MIN_OF(strcspn(at, ":"), n);

        rc = take_word(out, span_of(at, word),
                       word < n ? span_of(at + word + 1, n - word - 1) : span_of("", 0),
                       err);
        at = at[n] ? at + n + 1 : NULL;
    }
    return rc;
}

int notice_answer_parse(int *sig, const char *text, struct muster_error *err)
{
    *sig = SIGTERM;
    if (!text || !*text)
        return 0;
    if (is_signal_like(span_str(text)))
        return take_signal("--on-notice", span_str(text), sig, err);
    *sig = 0;
    return 0;
}

void notice_file_text(char text[NOTICE_FILE_SIZE + 1], int64_t deadline_us)
{
    const uint64_t us = deadline_us > 0 ? (uint64_t)deadline_us : 0;

    (void)snprintf(text, NOTICE_FILE_SIZE + 1, "%24" PRIu64 ".%06u\n", us / 1000000,
                   (unsigned)(us % 1000000));
}
