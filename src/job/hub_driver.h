/* hub_driver.h - the coordinators of jobs (job/core/hub.h) that live in a store
 * server, one for each run id. They are part of the store's tenant
 * (job/run_driver.c), which calls these functions and has the timer. */
#ifndef JOB_HUB_DRIVER_H
#define JOB_HUB_DRIVER_H

#include "job/core/hub.h"
#include "store/tenant.h"

struct hubs;

struct hub_now hub_clock(void);

/* True if the request is a message on a job channel. Then it has been dealt with, and
 * *rc is 0 or MUSTER_ENOMEM. *hubs is allocated for the first such message. */
bool hubs_take(struct hubs **hubs, struct store_server *s, struct conn *c,
               const struct c10d_request *req, int *rc);

/* Appends the run ids, a line each. NULL is fine. */
void hubs_print_runs(const struct hubs *hubs, struct buf *out);

/* The connection c is gone. */
void hubs_left(struct hubs *hubs, struct store_server *s, struct conn *c);
void hubs_timer(struct hubs *hubs, struct store_server *s); /* NULL is fine */
uint64_t hubs_deadline_ms(const struct hubs *hubs);         /* likewise */
void hubs_free(struct hubs *hubs);                          /* likewise */

#endif
