/* store_rounds.c - see store_rounds.h. */
#include "io/store_rounds.h"

#include <inttypes.h>

#include "group/ranks.h"

/* Nobody knows any more how many nodes there were; some may never have told. */
#define GAP_MOST 64

static bool forget(struct store *s, struct store_fx *fx, struct buf *key, size_t stem,
                   const char *name, int64_t number)
{
    struct c10d_request del = { .op = C10D_DELETE_KEY };
    const struct store_event ev = { STORE_REQUEST, .peer = UINT32_MAX,
                                    .request = &del };

    key->len = stem;
    if (buf_append_str(key, name) < 0 ||
        (number >= 0 && buf_printf(key, "%" PRId64, number) < 0))
        return false;
    del.key = buf_span(key);
    return store_step(s, &ev, fx) == 0 && fx->count == 1 &&
           fx->items[0].kind == STORE_REPLY && fx->items[0].reply.number == 1;
}

void store_forget_round(struct store *s, struct store_fx *fx, struct span run_key,
                        int64_t round)
{
    static const char *const lists[] = { RANKS_ROLE_KEY, RANKS_ASSIGNED_KEY };
    struct buf key;

    buf_init(&key, SIZE_MAX);
    if (buf_append_span(&key, run_key) == 0 &&
        buf_printf(&key, ".%" PRId64 "/", round) == 0) {
        const size_t stem = buf_len(&key);

        (void)forget(s, fx, &key, stem, "MASTER_ADDR", -1);
        (void)forget(s, fx, &key, stem, "MASTER_PORT", -1);
        for (size_t i = 0; i < ARRAY_LEN(lists); i++)
            for (int64_t rank = 0, gap = 0; gap < GAP_MOST; rank++)
                gap = forget(s, fx, &key, stem, lists[i], rank) ? 0 : gap + 1;
    }
    buf_fini(&key);
}
