/* lanes.h - several connections inside one: the connections of a node's workers to
 * their store are lanes of one encrypted connection. Pure: this file has only the
 * frames.
 *
 * A connection begins to carry lanes when its client pushes LANES_VERSION to LANES_KEY.
 * From there on both sides send frames of 8 bytes (u32 lane, u32 kind << 28 | count)
 * and, with DATA, count bytes:
 *
 *   OPEN   client: a new connection, whose number is free; count is 0
 *   DATA   some bytes of that connection
 *   ROOM   client: the server may send so many bytes more in this lane
 *   CLOSE  client: it sends no more; server: the lane has ended. count is 0
 *
 * The server answers each OPEN with one CLOSE, sooner or later; then the number is free
 * again. What the client has sent after the lane ended is dropped. A server sends at
 * most LANES_WINDOW bytes for which it has had no ROOM, so that a worker that does not
 * read holds up nobody else. In the other direction there is no window: a lane that
 * sends too much for one request is closed, as a connection of its own would be. */
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

/* Takes a frame, or a piece of DATA, from the front of the bytes and returns how many
 * of them it took; or 0 if all of them were taken and the head is still incomplete; or
 * MUSTER_EPROTO. */
int64_t lanes_decode(struct lanes_decoder *d, struct span bytes, struct lane_frame *out,
                     struct muster_error *err);

/* count is 0 for OPEN and CLOSE, else from 1 to LANES_WINDOW. */
void lanes_head(uint8_t out[LANES_HEAD], enum lane_kind kind, uint32_t lane,
                size_t count);
int lanes_put(struct buf *out, enum lane_kind kind, uint32_t lane, size_t count);

#endif
