/* store_stats.c - what a store server has done so far, for whoever asks. */
#include <inttypes.h>

#include "io/store_server_int.h"

bool stats_take(struct store_server *s, struct conn *c, const struct c10d_request *req)
{
    const struct server_stats *is = &s->stats;
    struct c10d_reply r = { .op = C10D_GET };
    struct buf text, out;

    if (req->op != C10D_GET || !span_eq(req->key, span_str(STATS_KEY)))
        return false;
    buf_init(&text, 256);
    buf_init(&out, 512);
    if (buf_printf(&text,
                   "requests %" PRIu64 " answers %" PRIu64 " bytes_in %" PRIu64
                   " bytes_out %" PRIu64 " connections %zu",
                   is->requests, is->answers, is->bytes_in, is->bytes_out,
                   s->count) < 0)
        buf_clear(&text);
    r.value = buf_span(&text);
    if (c10d_encode_reply(&out, &r) < 0)
        conn_refuse(s, c, "out of memory");
    else
        server_send(s, c, buf_span(&out));
    buf_fini(&text);
    buf_fini(&out);
    return true;
}
