/* group_int.h - what group.c and group_end.c share. */
#ifndef GROUP_GROUP_INT_H
#define GROUP_GROUP_INT_H

#include "group/group.h"

/* There is room: group_step has reserved it. */
void group_put(struct group_fx_list *fx, struct group_fx what);
void group_put_kind(struct group_fx_list *fx, enum group_fx_kind kind);

/* Tells every living worker to go by sig; all else follows from exits and the clock. */
void group_stop(struct group *g, enum group_why why, int sig, uint64_t grace_ms,
                struct now now, struct group_fx_list *fx);
/* Tells what exited workers left behind to go, once. */
void group_ask_leftovers(struct group *g, struct now now, struct group_fx_list *fx);
/* Nothing runs any more: what was written is passed on. */
void group_drain(struct group *g, struct group_fx_list *fx);
/* Says goodbye with a deadline, then finishes. */
void group_leave(struct group *g, struct now now, struct group_fx_list *fx);

void group_on_left(struct group *g, struct group_fx_list *fx);
void group_on_fatal(struct group *g, struct now now, struct group_fx_list *fx);
void group_on_signal(struct group *g, const struct group_event *ev,
                     struct group_fx_list *fx);
void group_on_timeout(struct group *g, struct now now, struct group_fx_list *fx);

#endif
