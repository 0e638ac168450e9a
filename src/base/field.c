/* field.c - see field.h. */
#include "base/field.h"

#include <assert.h>
#include <inttypes.h>

#include "base/err.h"

int field_put(struct buf *out, const struct field *f, const void *from)
{
    const char *at = (const char *)from + f->at;
    struct span text;
    uint64_t u64;
    uint32_t u32;
    int rc;

    if (f->type == FIELD_64) {
        memcpy(&u64, at, sizeof u64);
        return buf_u64(out, u64);
    }
    if (f->type == FIELD_32) {
        memcpy(&u32, at, sizeof u32);
        return buf_u32(out, u32);
    }
    memcpy(&text, at, sizeof text);
    if (text.n > f->most)
        return MUSTER_EFULL;
    rc = buf_u32(out, (uint32_t)text.n);
    return rc ? rc : buf_append_span(out, text);
}

static struct span field_take(struct span *rest, size_t n)
{
    const struct span taken = span_of(rest->p, n);

    assert(n <= rest->n);
    *rest = span_of(rest->p + n, rest->n - n);
    return taken;
}

static int check_range(const struct field *f, int64_t n, const char *what,
                       struct muster_error *err)
{
    if ((f->low == 0 && f->high == 0) || (n >= f->low && n <= f->high))
        return 0;
    return err_set(err, MUSTER_EPROTO,
                   "%s: its %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, what,
                   f->name, n, f->low, f->high);
}

int field_get(struct span *rest, const struct field *f, void *to, const char *what,
              struct muster_error *err)
{
    const size_t need = f->type == FIELD_64 ? 8 : 4;
    char *at = (char *)to + f->at;

    if (rest->n < need)
        return err_set(err, MUSTER_EPROTO, "%s ends before its %s", what, f->name);
    const uint8_t *number = field_take(rest, need).p;
    if (f->type == FIELD_64) {
        const uint64_t n = get_u64(number);

        memcpy(at, &n, sizeof n);
        return check_range(f, (int64_t)n, what, err);
    }
    const uint32_t n = get_u32(number);
    if (f->type == FIELD_32) {
        memcpy(at, &n, sizeof n);
        return check_range(f, n, what, err);
    }
    if (n > rest->n || n > f->most)
        return err_set(err, MUSTER_EPROTO,
                       "%s: its %s has %u bytes, but %zu are left and %zu allowed",
                       what, f->name, n, rest->n, f->most);
    memcpy(at, &(struct span){ .p = rest->p, .n = n }, sizeof(struct span));
    (void)field_take(rest, n);
    return 0;
}

int fields_put(struct buf *out, const struct field *fields, size_t count,
               const void *from)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = field_put(out, &fields[i], from);
    return rc;
}

int fields_get(struct span *rest, const struct field *fields, size_t count, void *to,
               const char *what, struct muster_error *err)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = field_get(rest, &fields[i], to, what, err);
    return rc;
}
