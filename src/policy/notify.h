/* notify.h - tells others what happens to a job: --notify=URL|CMD.
 *
 * A process of its own, started before the job and outside of it, reads the name of an
 * event and a JSON object, and delivers the latter: a URL by POST, a command on its
 * stdin. Each delivery is a process, too, and is tried for a minute. So nobody waits
 * for a dead URL, and what was said last is delivered after the job has ended. If one
 * fails, a sentence about it can be read from the same descriptor. */
#ifndef POLICY_NOTIFY_H
#define POLICY_NOTIFY_H

#include "base/buf.h"
#include "base/text_list.h"

/* Starts it; call it while this process has one thread. Returns the descriptor to write
 * to, which does not block, or -1: it could not be started. */
int notify_start(const struct text_list *targets);

#define NOTIFY_WORD_MAX 192u /* such a sentence */

/* Passes "EVENT JSON" on, or drops it if too many wait. */
void notify_send(int fd, struct span line);

#endif
