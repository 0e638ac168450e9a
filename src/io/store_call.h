/* store_call.h - one call on a TCP store: its bytes, its deadline, who wants to know.
 *
 * Used by store_client.c alone. A call is in one of the client's lists from its birth
 * to its end. */
#ifndef IO_STORE_CALL_H
#define IO_STORE_CALL_H

#include "io/astore.h"

enum call_phase {
    CALL_QUEUED,    /* nothing is sent yet */
    CALL_WAITING,   /* WAIT or BARRIER is sent, and nothing may be sent behind it */
    CALL_CANCELING, /* its time is up, CANCEL_WAIT is sent */
    CALL_ASKED,     /* the request is sent */
};

struct call {
    struct call *next;
    enum c10d_op op;
    enum call_phase phase;
    bool waits;        /* the first thing it sends blocks */
    bool orphan;       /* its callback has been called; only the wire still knows it */
    struct buf bytes;  /* not yet sent */
    bool overdue;      /* CANCELING: for the second time */
    size_t wait_bytes; /* of them, the WAIT in front of the request; 0: none */
    size_t expect;     /* MULTI_GET: values */
    uint64_t timeout_ms, deadline_ms;
    uint64_t out_end; /* without an answer: where it ends in the stream we send */
    struct c10d_reply_decoder decoder;
    astore_cb cb;
    void *ctx;      /* borrowed */
    char keys[104]; /* for messages: "/a, /b", cut if long */
};

/* Encodes req with prefix before each key. MUSTER_EINVAL, MUSTER_ENOMEM. */
int call_new(const struct c10d_request *req, const char *prefix, unsigned flags,
             struct call **out, struct muster_error *err);
void call_free(struct call *call);

/* "GET of /k", "WAIT for /a, /b". */
void call_text(const struct call *call, char out[160]);

/* Its time is up; torch's words for waits. */
void call_timed_out(const struct call *call, const char *store, const char *why,
                    struct muster_error *err);

/* First in, first out. */
struct call_list {
    struct call *first, *last;
};

void call_list_add(struct call_list *list, struct call *call);
struct call *call_list_take(struct call_list *list); /* the first, or NULL */
void call_list_remove(struct call_list *list, struct call *call);

#endif
