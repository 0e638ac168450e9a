/* failure_report.c - see failure_report.h. */
#include "agent/core/failure_report.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/py/json.h"

#define WIDTH_MAX     60
#define NOT_AVAILABLE "<N/A>"

/* --- error files ------------------------------------------------------------------ */

void error_file_fini(struct error_file *e)
{
    mem_free(e->text);
    mem_free(e->json);
    *e = (struct error_file){ 0 };
}

/* int(x) for what JSON can hold; false if Python would refuse. */
static bool as_int(const json_t *v, int64_t *out)
{
    if (json_is_integer(v))
        *out = json_integer_value(v);
    else if (json_is_real(v) && json_real_value(v) > -1e15 && json_real_value(v) < 1e15)
        *out = (int64_t)json_real_value(v);
    else if (json_is_boolean(v))
        *out = json_is_true(v);
    else if (json_is_string(v)) {
        char *end;
        *out = strtoll(json_string_value(v), &end, 10);
        return end != json_string_value(v) && *end == '\0';
    } else {
        return false;
    }
    return true;
}

/* Every newline followed by two blanks. */
static char *indented(const char *text)
{
    struct buf b;
    int rc = 0;

    buf_init(&b, SIZE_MAX);
    for (const char *p = text; rc == 0 && *p; p++)
        rc = *p == '\n' ? buf_append_str(&b, "\n  ") : buf_u8(&b, (uint8_t)*p);
    char *copy = rc == 0 ? mem_strndup((const char *)buf_data(&b), buf_len(&b)) : NULL;
    buf_fini(&b);
    return copy;
}

/* The traceback of an object: its callstack, else its message, else nothing known. */
static const char *shown_field(const json_t *message)
{
    const json_t *stack =
        json_object_get(json_object_get(message, "extraInfo"), "py_callstack");
    const json_t *text = stack ? stack : json_object_get(message, "message");

    return json_is_string(text) ? json_string_value(text) : NOT_AVAILABLE;
}

static int read_message(struct error_file *e, const json_t *root,
                        struct muster_error *err)
{
    const json_t *message = json_object_get(root, "message");
    const json_t *stamp = json_object_get(root, "timestamp");

    if (!message)
        return err_set(err, MUSTER_ESTATE, "there is no member \"message\"");
    if (json_is_string(message)) {
        if (stamp && !as_int(stamp, &e->time_s))
            return err_set(err, MUSTER_ESTATE, "\"timestamp\" is not a number");
        e->text = mem_strdup(json_string_value(message));
        return e->text ? 0 : err_nomem(err);
    }
    stamp = json_object_get(json_object_get(message, "extraInfo"), "timestamp");
    if (!stamp || !as_int(stamp, &e->time_s))
        return err_set(err, MUSTER_ESTATE,
                       "there is no number at message.extraInfo.timestamp");
    e->object = true;
    e->text = indented(shown_field(message));
    return e->text ? 0 : err_nomem(err);
}

int error_file_parse(struct error_file *e, struct span bytes, struct muster_error *err)
{
    struct error_file out = { 0 };
    struct buf text;
    json_t *root;
    int rc = json_from_python(&root, bytes, err);

    if (rc != 0)
        return rc;
    rc = read_message(&out, root, err);
    buf_init(&text, SIZE_MAX);
    if (rc == 0) {
        rc = json_python(&text, root);
        out.json =
            rc == 0 ? mem_strndup((const char *)buf_data(&text), buf_len(&text)) : NULL;
        rc = out.json ? 0 : err_nomem(err);
    }
    buf_fini(&text);
    json_decref(root);
    if (rc == 0)
        *e = out;
    else
        error_file_fini(&out);
    return rc;
}

int error_file_for_parent(struct buf *out, const struct error_file *e, int code)
{
    json_t *root = json_loads(e->json, 0, NULL);
    json_t *message = json_object_get(root, "message");
    int rc = root ? 0 : MUSTER_ENOMEM;

    if (rc == 0 && e->object) {
        json_object_del(message, "errorCode");
        rc = json_object_set_new(message, "errorCode", json_integer(code))
                 ? MUSTER_ENOMEM
                 : 0;
    }
    if (rc == 0)
        rc = json_python(out, root);
    json_decref(root);
    return rc;
}

int error_file_print(struct buf *out, const char *message, const char *detail,
                     int64_t now_s)
{
    int rc = buf_append_str(out, "{\"message\": {\"message\": ");
    if (rc == 0)
        rc = json_text(out, message);
    if (rc == 0)
        rc = buf_append_str(out, ", \"extraInfo\": {\"py_callstack\": ");
    if (rc == 0)
        rc = json_text(out, detail);
    if (rc == 0)
        rc = buf_printf(out, ", \"timestamp\": \"%" PRId64 "\"}}}", now_s);
    return rc;
}

/* --- failures --------------------------------------------------------------------- */

void failure_fini(struct failure *f)
{
    mem_free(f->words);
    error_file_fini(&f->data);
    mem_free(f->error_file);
    f->error_file = NULL;
}

size_t failure_root(const struct failure *list, size_t count)
{
    size_t root = 0;

    assert(count > 0);
    for (size_t i = 1; i < count; i++)
        if (list[i].time_s < list[root].time_s)
            root = i;
    return root;
}

static const char *signal_name(const struct failure *f)
{
    return f->code < 0 && f->signal_name ? f->signal_name : NOT_AVAILABLE;
}

/* The traceback line: the error file's, or what the exit code tells. */
static int failure_text(struct buf *out, const struct failure *f)
{
    if (f->data.text && f->data.text[0])
        return buf_append_str(out, f->data.text);
    if (f->words)
        return buf_append_str(out, f->words);
    if (f->code < 0)
        return buf_printf(out, "Signal %d (%s) received by PID %d", -f->code,
                          signal_name(f), f->pid);
    return buf_append_str(out, "To enable traceback see: "
                               "https://pytorch.org/docs/stable/elastic/errors.html");
}

/* --- the report ------------------------------------------------------------------- */

static int block(struct buf *out, size_t index, const char *host,
                 const struct failure *f)
{
    const char *name = signal_name(f);
    const bool named = strcmp(name, NOT_AVAILABLE) != 0;
    int rc = buf_printf(out,
                        "[%zu]:\n"
                        "  time      : %s\n"
                        "  host      : %s\n"
                        "  rank      : %" PRId64 " (local_rank: %" PRId64 ")\n"
                        "  exitcode  : %d (pid: %d) %s%s%s\n"
                        "  error_file: %s\n"
                        "  traceback : ",
                        index, f->when, host, f->rank, f->local_rank, f->code, f->pid,
                        named ? " (" : "", named ? name : "", named ? ")" : "",
                        f->error_file ? f->error_file : NOT_AVAILABLE);
    return rc ? rc : failure_text(out, f);
}

/* In characters, not bytes, as Python counts. */
static size_t longest_line(struct span text)
{
    size_t best = 0, here = 0;

    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] == '\n')
            here = 0;
        else if ((text.p[i] & 0xc0) != 0x80)
            here++;
        best = MAX_OF(best, here);
    }
    return best;
}

static int rule(struct buf *out, char of, size_t width)
{
    char line[WIDTH_MAX + 1];

    assert(width <= WIDTH_MAX);
    memset(line, of, width);
    line[width] = '\n';
    return buf_append(out, line, width + 1);
}

/* All blocks but the root's, or a word that there are none. */
static int others(struct buf *out, const char *host, const struct failure *list,
                  size_t count, size_t root)
{
    int rc = count > 1 ? 0 : buf_append_str(out, "  <NO_OTHER_FAILURES>\n");

    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (i == root)
            continue;
        rc = block(out, i, host, &list[i]);
        if (rc == 0)
            rc = buf_u8(out, '\n');
    }
    return rc;
}

int report_print(struct buf *out, const char *name, const char *host,
                 const struct failure *list, size_t count)
{
    const size_t root = failure_root(list, count);
    struct buf rest, cause;
    size_t width = longest_line(span_str(name)) + strlen(" FAILED");

    buf_init(&rest, SIZE_MAX);
    buf_init(&cause, SIZE_MAX);
    int rc = others(&rest, host, list, count, root);
    if (rc == 0)
        rc = block(&cause, root, host, &list[root]);
    if (count > 1) /* The word that there are none does not count. */
        width = MAX_OF(width, longest_line(buf_span(&rest)));
    width = MIN_OF(MAX_OF(width, longest_line(buf_span(&cause))), WIDTH_MAX);
    if (rc == 0)
        rc = buf_u8(out, '\n');
    if (rc == 0)
        rc = rule(out, '=', width);
    if (rc == 0)
        rc = buf_printf(out, "%s FAILED\n", name);
    if (rc == 0)
        rc = rule(out, '-', width);
    if (rc == 0)
        rc = buf_append_str(out, "Failures:\n");
    if (rc == 0)
        rc = buf_append_span(out, buf_span(&rest));
    if (rc == 0)
        rc = rule(out, '-', width);
    if (rc == 0)
        rc = buf_append_str(out, "Root Cause (first observed failure):\n");
    if (rc == 0)
        rc = buf_append_span(out, buf_span(&cause));
    if (rc == 0)
        rc = buf_u8(out, '\n');
    if (rc == 0)
        rc = rule(out, '=', width);
    buf_fini(&rest);
    buf_fini(&cause);
    return rc;
}
