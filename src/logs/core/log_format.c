/* log_format.c - see log_format.h. A format is read once for the check, which throws
 * what it prints away, and once for each message. */
#include "logs/core/log_format.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/py/json.h"
#include "base/py/repr.h"

#define WIDE 1000 /* a wider field is refused */

/* A field with its conversion: %(levelname)-8s. Absent numbers are -1. */
struct field {
    struct span name;
    char flags[6];
    int width, precision;
    char conversion;
};

/* --- reading a format ------------------------------------------------------------- */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (c >= '0' && c <= '9');
}

static const char *take_number(const char *p, int *out)
{
    *out = -1;
    for (; *p >= '0' && *p <= '9'; p++) {
        *out = (*out < 0 ? 0 : *out * 10) + (*p - '0');
        if (*out > WIDE)
            return NULL;
    }
    return p;
}

/* Where the field that begins at p ("%(") ends, or NULL: Python could not use it, or we
 * cannot ("*", hexadecimal). */
static const char *take_field(const char *p, struct field *f)
{
    size_t flags = 0;

    *f = (struct field){ .width = -1, .precision = -1 };
    if (p[0] != '%' || p[1] != '(')
        return NULL;
    const char *name = p += 2;
    while (is_name(*p))
        p++;
    f->name = span_of(name, (size_t)(p - name));
    if (f->name.n == 0 || *p++ != ')')
        return NULL;
    for (; *p && strchr("#0+ -", *p); p++)
        if (!strchr(f->flags, *p) && flags + 1 < sizeof f->flags)
            f->flags[flags++] = *p;
    p = take_number(p, &f->width);
    if (p && *p == '.') {
        p = take_number(p + 1, &f->precision);
        f->precision = f->precision < 0 ? 0 : f->precision;
    }
    if (!p || !*p || !strchr("diufFeEgGsra", *p))
        return NULL;
    assert(f->width <= WIDE && f->precision <= WIDE && flags < sizeof f->flags);
    f->conversion = *p;
    return p + 1;
}

/* Python's own check: a format has at least one field in it. */
static bool has_field(const char *text)
{
    for (const char *p = text; (p = strstr(p, "%(")); p += 2) {
        const char *q = p + 2;
        while (is_name(*q))
            q++;
        if (q == p + 2 || *q++ != ')')
            continue;
        q += strspn(q, "#0+ -");
        q += *q == '*' ? 1 : strspn(q, "0123456789");
        if (*q == '.')
            q += q[1] == '*' ? 2 : 1 + strspn(q + 1, "0123456789");
        if (*q && strchr("diouxXefgcrsaDIOUEFGCRSA%", *q))
            return true;
    }
    return false;
}

/* --- values ----------------------------------------------------------------------- */

static int put_padded(struct buf *out, const struct field *f, struct span text)
{
    const bool left = strchr(f->flags, '-');
    int rc = 0;

    if (f->precision >= 0 && text.n > (size_t)f->precision)
        text.n = (size_t)f->precision;
    const size_t pad =
        f->width > 0 && (size_t)f->width > text.n ? (size_t)f->width - text.n : 0;
    if (left)
        rc = buf_append_span(out, text);
    for (size_t i = 0; rc == 0 && i < pad; i++)
        rc = buf_u8(out, ' ');
    return rc || left ? rc : buf_append_span(out, text);
}

static int put_text_field(struct buf *out, const struct field *f, struct span text)
{
    if (f->conversion == 's')
        return put_padded(out, f, text);
    if (f->conversion != 'r' && f->conversion != 'a')
        return MUSTER_ENOTSUP; /* a text where Python wants a number */

    struct buf copy, quoted;
    buf_init(&copy, SIZE_MAX);
    buf_init(&quoted, SIZE_MAX);
    (void)buf_append_span(&copy, text);
    (void)buf_u8(&copy, 0);
    int rc = buf_error(&copy);
    if (rc == 0)
        rc = py_repr(&quoted, (const char *)buf_data(&copy));
    if (rc == 0)
        rc = put_padded(out, f, buf_span(&quoted));
    buf_fini(&copy);
    buf_fini(&quoted);
    return rc;
}

static int put_number_field(struct buf *out, const struct field *f, double v,
                            bool whole)
{
    char format[24], text[2 * WIDE + 400];
    struct buf b;

    if (strchr("sra", f->conversion)) { /* str() of it */
        json_t *j = whole ? json_integer((json_int_t)v) : json_real(v);
        buf_init(&b, SIZE_MAX);
        int rc = j ? json_python(&b, j) : MUSTER_ENOMEM;
        if (rc == 0)
            rc = put_padded(out, f, buf_span(&b));
        buf_fini(&b);
        json_decref(j);
        return rc;
    }
    const bool integer = strchr("diu", f->conversion);
    snprintf(format, sizeof format, "%%%s%s%s%s%c", f->flags, f->width >= 0 ? "*" : "",
             f->precision >= 0 ? ".*" : "", integer ? "l" : "",
             integer ? 'd' : f->conversion);
    const int w = f->width, p = f->precision;
    int n;
#define PRINT(v)                                                                       \
    (w >= 0 && p >= 0 ? snprintf(text, sizeof text, format, w, p, (v))                 \
     : w >= 0         ? snprintf(text, sizeof text, format, w, (v))                    \
     : p >= 0         ? snprintf(text, sizeof text, format, p, (v))                    \
                      : snprintf(text, sizeof text, format, (v)))
    if (integer)
        n = PRINT((long)v);
    else
        n = PRINT(v);
#undef PRINT
    return n > 0 ? buf_append(out, text, MIN_OF((size_t)n, sizeof text - 1)) : 0;
}

/* --- the fields of a record ------------------------------------------------------- */

/* "site-packages/torch/a/b.py:12": the path, its last part, the number. */
static struct span source_path(const char *where)
{
    const char *colon = strrchr(where, ':');

    return colon ? span_of(where, (size_t)(colon - where)) : span_str(where);
}

static struct span source_file(const char *where)
{
    const struct span path = source_path(where);
    size_t at = path.n;

    while (at > 0 && path.p[at - 1] != '/')
        at--;
    assert(at <= path.n);
    return span_of(path.p + at, path.n - at);
}

static struct span without(struct span s, const char *ending)
{
    const size_t n = strlen(ending);

    if (s.n >= n && memcmp(s.p + s.n - n, ending, n) == 0)
        s.n -= n;
    return s;
}

/* The logger: the module, "torch.distributed.run". A package's own file is the
 * package. */
static int put_logger(struct buf *out, const struct field *f, const char *where)
{
    static const char site[] = "site-packages/";
    struct span path = without(without(source_path(where), ".py"), "/__init__");
    char name[256];
    size_t n = 0;

    if (path.n > sizeof site - 1 && memcmp(path.p, site, sizeof site - 1) == 0)
        path = span_of(path.p + sizeof site - 1, path.n - (sizeof site - 1));
    for (; n < path.n && n < sizeof name; n++)
        name[n] = path.p[n] == '/' ? '.' : (char)path.p[n];
    return put_text_field(out, f, span_of(name, n));
}

static double source_line(const char *where)
{
    const char *colon = strrchr(where, ':');
    double line = 0;

    for (const char *p = colon ? colon + 1 : ""; *p >= '0' && *p <= '9'; p++)
        line = line * 10 + (*p - '0');
    return line;
}

/* MUSTER_EINVAL: a record has no such field. */
static int put_record_field(struct buf *out, const struct field *f,
                            const struct log_record *r)
{
    const double ms = (r->created - (double)(int64_t)r->created) * 1000;
    const struct {
        const char *name;
        struct span text;
    } texts[] = {
        { "message", span_str(r->message) },
        { "levelname", span_str(r->level) },
        { "asctime", span_str(r->asctime) },
        { "pathname", source_path(r->where) },
        { "filename", source_file(r->where) },
        { "module", without(source_file(r->where), ".py") },
        { "funcName", span_str("(unknown function)") },
        { "processName", span_str("MainProcess") },
        { "threadName", span_str("MainThread") },
    };
    const struct {
        const char *name;
        double number;
        bool whole;
    } numbers[] = {
        { "levelno", r->level_number, true },
        { "lineno", source_line(r->where), true },
        { "process", r->pid, true },
        { "thread", r->pid, true },
        { "created", r->created, false },
        { "msecs", (double)(int64_t)ms, false }, /* whole ones, as in newer Pythons */
        { "relativeCreated", r->since_start, false },
    };

    if (span_eq(f->name, span_str("name")))
        return put_logger(out, f, r->where);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (span_eq(f->name, span_str(texts[i].name)))
            return put_text_field(out, f, texts[i].text);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (span_eq(f->name, span_str(numbers[i].name)))
            return put_number_field(out, f, numbers[i].number, numbers[i].whole);
    return MUSTER_EINVAL;
}

static int refuse_format(struct muster_error *err, struct span what, int rc)
{
    if (rc == MUSTER_ENOMEM)
        return err_nomem(err);
    return err_set(err, MUSTER_ENOTSUP, "Formatting field not found in record: '%.*s'",
                   (int)what.n, (const char *)what.p);
}

static int print_record(struct buf *out, const char *format, const struct log_record *r,
                        struct muster_error *err)
{
    for (const char *p = format; *p;) {
        const size_t plain = strcspn(p, "%");
        struct field f;
        int rc = buf_append(out, p, plain);

        p += plain;
        if (rc == 0 && p[0] == '%' && p[1] == '%') {
            rc = buf_u8(out, '%');
            p += 2;
        } else if (rc == 0 && *p) {
            const char *end = take_field(p, &f);
            if (!end)
                return refuse_format(err, span_of(p, strcspn(p, " ")), MUSTER_ENOTSUP);
            rc = put_record_field(out, &f, r);
            p = end;
            if (rc != 0)
                return refuse_format(err, f.name, rc);
        }
        if (rc != 0)
            return refuse_format(err, span_str(""), rc);
    }
    return buf_u8(out, '\n');
}

int logline_print(struct buf *out, const char *format, const struct log_record *r)
{
    return print_record(out, format, r, NULL);
}

int logline_format(const char *text, const char **format, struct muster_error *err)
{
    static const struct log_record any = { "INFO", 20, "a/b.py:1", "", "", 1, 1, 1 };
    struct buf nowhere;

    if (strcmp(text, "short") == 0 || strcmp(text, "basic") == 0)
        text = "%(levelname)s:%(name)s:%(message)s";
    else if (!*text)
        text = "%(message)s";
    if (!has_field(text))
        return err_set(
            err, MUSTER_EINVAL,
            "Invalid format '%s' for '%%' style\nTORCH_LOGS_FORMAT is short, "
            "or a format with fields like %%(levelname)s and %%(message)s.",
            text);
    buf_init(&nowhere, SIZE_MAX);
    const int rc = print_record(&nowhere, text, &any, err);
    buf_fini(&nowhere);
    if (rc == 0)
        *format = text;
    return rc;
}
