/* wire.h - the wire of PyTorch's TCPStore: encodes and decodes requests and replies.
 *
 * There is no policy here. Nothing is copied or allocated while decoding: all
 * spans point into the caller's bytes and live as long as those do. A request may come
 * in any number of pieces; a decoder remembers how far it has looked, so that the work
 * is linear in the bytes however they are cut. */
#ifndef STORE_CORE_WIRE_H
#define STORE_CORE_WIRE_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"
#include "store/core/reserved.h"

#define C10D_MAGIC     0x3C85F7CEu
#define C10D_MAX_KEY   8192u
#define C10D_MAX_VALUE 8388608u
#define C10D_MAX_KEYS  131072u

/* X(name, opcode of dialect C) */
#define C10D_OPS(X)                                                                    \
    X(VALIDATE, 0x00)                                                                  \
    X(SET, 0x01)                                                                       \
    X(COMPARE_SET, 0x02)                                                               \
    X(GET, 0x03)                                                                       \
    X(ADD, 0x04)                                                                       \
    X(CHECK, 0x05)                                                                     \
    X(WAIT, 0x06)                                                                      \
    X(GETNUMKEYS, 0x07)                                                                \
    X(DELETE_KEY, 0x08)                                                                \
    X(APPEND, 0x09)                                                                    \
    X(MULTI_GET, 0x0a)                                                                 \
    X(MULTI_SET, 0x0b)                                                                 \
    X(CANCEL_WAIT, 0x0c)                                                               \
    X(PING, 0x0d)                                                                      \
    X(QUEUE_PUSH, 0x0e)                                                                \
    X(QUEUE_POP, 0x0f)                                                                 \
    X(QUEUE_LEN, 0x10)                                                                 \
    X(LIST_KEYS, 0x11)                                                                 \
    X(BARRIER, 0x12)

enum c10d_op {
#define C10D_OP_ENUM(name, code) C10D_##name = code,
    C10D_OPS(C10D_OP_ENUM)
#undef C10D_OP_ENUM
        C10D_OP_COUNT
};

const char *c10d_op_name(enum c10d_op op); /* "COMPARE_SET" */

/* Which PyTorch the peer has: A is 1.9 to 2.0, B is 2.1, C is 2.2 and later. Decoded
 * requests always have the opcodes of C. */
enum c10d_dialect {
    C10D_DIALECT_UNKNOWN,
    C10D_DIALECT_A,
    C10D_DIALECT_B,
    C10D_DIALECT_C
};

/* A list of keys (CHECK, WAIT, MULTI_GET) or of key-value pairs (MULTI_SET), still
 * encoded: checked by the decoder, read with c10d_list_next. */
struct c10d_list {
    struct span bytes; /* the elements, each u64 length + bytes; borrowed */
    size_t count;      /* keys, or pairs */
};

struct c10d_request {
    enum c10d_op op;
    struct span key;       /* all requests with one key */
    struct reserved name;  /* reserved_parse(key); set by decoders, and what the engine
                              goes by */
    struct span value;     /* SET, APPEND, QUEUE_PUSH; COMPARE_SET: desired */
    struct span expected;  /* COMPARE_SET */
    int64_t number;        /* ADD: delta; BARRIER: world size */
    uint32_t word;         /* VALIDATE: magic; PING: nonce */
    struct c10d_list list; /* CHECK, WAIT, MULTI_GET, MULTI_SET */
};

/* Takes the next element off a checked list; false at its end. For MULTI_SET keys and
 * values alternate. */
bool c10d_list_next(struct c10d_list *list, struct span *element);

/* Encodes one element of a list into out, for callers that build lists. */
int c10d_list_add(struct buf *out, struct span element);

struct c10d_decoder {
    enum c10d_dialect dialect;
    enum c10d_dialect old; /* the assumed dialect of an old client until it turns out
                              to be B; it is B unless the owner sets A */
    bool validated;        /* the handshake is over, or the dialect has none */
    uint64_t offset;       /* of the request's first byte in the peer's stream */
    size_t seen;           /* of an incomplete list: bytes already checked */
    uint64_t left;         /* elements not yet checked; of pairs, both halves count */
    bool in_list;
};

void c10d_decoder_init(struct c10d_decoder *d); /* waits for the handshake */

/* Looks at the n bytes p, which begin with a request. Returns how many of them the
 * request takes and fills in out; or 0 if more are needed; or MUSTER_EPROTO with the
 * offset in the peer's stream and the reason, after which the decoder must not be used
 * any more. The first request must be VALIDATE with the right magic, unless the first
 * bytes are those of an old dialect; no other may be. Between calls the bytes may move,
 * but bytes that were not returned as taken must be passed again. */
int64_t c10d_decode_request(struct c10d_decoder *d, const uint8_t *p, size_t n,
                            struct c10d_request *out, struct muster_error *err);

/* Appends the request in dialect C. MUSTER_EINVAL if it breaks a limit of the spec. */
int c10d_encode_request(struct buf *out, const struct c10d_request *req,
                        struct muster_error *err);

/* A reply. `word`: PING; `number`: ADD, DELETE_KEY, GETNUMKEYS, QUEUE_LEN, QUEUE_POP
 * (length before), and CHECK (0 ready, 1 not), WAIT, BARRIER (0 stop waiting),
 * CANCEL_WAIT (1); `value`: GET, COMPARE_SET, QUEUE_POP; `list`: MULTI_GET, LIST_KEYS.
 */
struct c10d_reply {
    enum c10d_op op;
    int64_t number;
    uint32_t word;
    struct span value;
    struct c10d_list list;
};

bool c10d_has_reply(enum c10d_op op); /* SET, APPEND, MULTI_SET, ... have none */

int c10d_encode_reply(struct buf *out, const struct c10d_reply *reply);

struct c10d_reply_decoder {
    enum c10d_op op; /* what the reply answers */
    size_t expect;   /* MULTI_GET: how many values */
    size_t seen;
    uint64_t left;
    bool in_list;
    size_t max_bytes; /* a larger reply is refused */
};

void c10d_reply_decoder_init(struct c10d_reply_decoder *d, enum c10d_op op,
                             size_t expect, size_t max_bytes);

/* Like c10d_decode_request, but `*whole` says whether out is filled in: the reply to a
 * MULTI_GET of no keys has no bytes, so this returns 0 with `*whole` true. */
int64_t c10d_decode_reply(struct c10d_reply_decoder *d, const uint8_t *p, size_t n,
                          struct c10d_reply *out, bool *whole,
                          struct muster_error *err);

#endif
