/* store_client_int.h - the inside of a TCP store; shared by the store_client files.
 *
 * A call waits in `queued` until the connection is there and nothing blocks it, goes
 * out, and then waits in `asked` for its answer, or in `unwritten` if it has none. The
 * server answers in order, so the first of `asked` is who the next bytes are for.
 * Whose time is up gets told at once; the call itself stays, an orphan, until its
 * answer has been seen and dropped, so that the connection stays in step. */
#ifndef STORE_CLIENT_INT_H
#define STORE_CLIENT_INT_H

#include "store/call.h"
#include "store/client.h"
#include "store/connect.h"

#define MAX_REPLY     ((size_t)1 << 30)
#define MAX_CALLS     ((size_t)1 << 17)
#define OUT_ENOUGH    ((size_t)1 << 20) /* unsent bytes at which calls stay queued */
#define READ_ROOM     ((size_t)16384)
#define CANCEL_MS     9000 /* for the answer to CANCEL_WAIT */
#define READ_FIRST_MS 1000 /* and a bit more, see expire() */

/* Bytes that the loop writes. It outlives the client if need be. */
struct outgoing {
    uv_write_t write;
    struct buf bytes;
    struct client *client; /* borrowed; NULL once the connection is dropped */
};

enum client_state { CLIENT_CONNECTING, CLIENT_READY, CLIENT_BROKEN, CLIENT_CLOSED };

struct client {
    struct async_store base; /* first */
    enum client_state state;
    char *host; /* owned; opts.host points to it */
    struct store_client_opts opts;
    char name[ENDPOINT_TEXT + 8];
    struct dialer *dialer;  /* owned, while connecting */
    struct dial_conn *conn; /* owned, while ready */
    char peer[ADDRESS_TEXT], local[ADDRESS_TEXT];
    struct muster_error why; /* it is broken */

    struct call_list queued, asked, unwritten;
    struct call *blocked; /* the one of `asked` that nothing may follow, or NULL */
    size_t calls;
    struct buf in, out;
    struct outgoing *busy;  /* what the loop is writing, or NULL */
    uint64_t sent, written; /* bytes of the stream: handed over, and gone */

    uv_timer_t timer;
    uint64_t armed_ms;     /* when it goes off; MONO_NEVER if it is not armed */
    uv_idle_t kick;        /* runs the client once, from the loop */
    store_open_cb open_cb; /* NULL once it has been called */
    void *open_ctx;
    store_open_cb loss_cb;
    void *loss_ctx;
    async_store_closed_cb closed_cb;
    void *closed_ctx;
    int handles; /* still to be closed */
};

/* All of these are called from the loop, and callbacks come from inside them. */

/* store_client_send.c */
void client_run(struct client *c); /* all that can be done now */
void client_send_rest(struct client *c, struct call *call); /* its wait is over */

/* store_client_time.c */
uint64_t client_mono_ms(void);
void client_arm(struct client *c, uint64_t due_ms);

/* store_client_end.c. tell calls back once: an orphan stays silent. */
void client_tell(struct call *call, int status, const struct c10d_reply *reply,
                 const struct muster_error *err);
void client_end(struct client *c, struct call *call);
void client_fail_call(struct client *c, struct call *call,
                      const struct muster_error *why);
void client_fail_all(struct client *c, const struct muster_error *why);

/* Closes the connection, or gives up making it. */
void client_drop(struct client *c);

/* The connection is of no more use: every call fails, and the owner is told. */
void client_lose(struct client *c, const struct muster_error *why);
void client_lose_uv(struct client *c, int uv);

/* store_client_read.c */
int client_start_reading(struct client *c);

#endif
