/* lanes.h - several connections inside one: what a node's workers say to their store
 * travels in lanes of one encrypted connection. Pure: the frames alone.
 *
 * The connection becomes such a one when its client pushes LANES_VERSION to LANES_KEY.
 * From there on both sides send frames of 8 bytes (u32 lane, u32 kind << 28 | count)
 * and, with DATA, count bytes:
 *
 *   OPEN   client: a new connection, whose number is free; count is 0
 *   DATA   some bytes of it
 *   ROOM   client: so many bytes more may come in this lane
 *   CLOSE  client: no more will come; server: it is over. count is 0
 *
 * The server answers each OPEN with one CLOSE, sooner or later; then the number is free
 * again. What the client has sent in the meantime is for nobody. A server has sent at
 * most LANES_WINDOW bytes for which no ROOM has come, so that a worker that does not
 * read holds up nobody else. A server takes what comes; those who send too much for one
 * request are closed, as on a connection of their own. */
#ifndef STORE_CORE_LANES_H
#define STORE_CORE_LANES_H

#include "base/buf.h"
#include "muster/error.h"
#include "store/core/reserved.h"

#define LANES_KEY     RESERVED_PREFIX "lanes"
#define LANES_VERSION "1"
#define LANES_MOST    16384u /* lanes of a connection */
#define LANES_WINDOW  131072u
#define LANES_HEAD    8u

enum lane_kind { LANE_OPEN, LANE_DATA, LANE_ROOM, LANE_CLOSE };

struct lane_frame {
    enum lane_kind kind;
    uint32_t lane;
    uint32_t count;   /* ROOM */
    struct span data; /* DATA: a piece of it, or nothing yet */
};

struct lanes_decoder {
    uint8_t head[LANES_HEAD];
    size_t got;          /* of the head */
    uint32_t lane, left; /* of DATA that is coming */
};

/* A frame, or a piece of DATA, at the front of the bytes: how many of them it took; 0:
 * they are all of a head that is not whole yet, and have been taken. MUSTER_EPROTO. */
int64_t lanes_decode(struct lanes_decoder *d, struct span bytes, struct lane_frame *out,
                     struct muster_error *err);

/* count: 0 for OPEN and CLOSE, else from 1 to LANES_WINDOW. */
void lanes_head(uint8_t out[LANES_HEAD], enum lane_kind kind, uint32_t lane,
                size_t count);
int lanes_put(struct buf *out, enum lane_kind kind, uint32_t lane, size_t count);

#endif
