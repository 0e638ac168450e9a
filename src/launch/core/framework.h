/* framework.h - what --for gives a worker beside torch's variables: tables of variables
 * and arguments, whose values are templates (env_template.h). Pure.
 *
 * Some frameworks need addresses and ports that are not the store's. So before workers
 * start, the nodes of a --for job tell each other one text each:
 *
 *     ADDR WORKERS PORT[,PORT...]
 *
 * with one port, or with one for each worker (tf). They were free when they were
 * chosen; the framework binds them. */
#ifndef LAUNCH_CORE_FRAMEWORK_H
#define LAUNCH_CORE_FRAMEWORK_H

#include "launch/core/worker_env.h"

#define FRAMEWORK_PMI_FD 3 /* where a worker finds its PMI server */

enum framework framework_of(const char *word); /* NULL or "": FOR_NONE */
const char *framework_name(enum framework f);

/* Whether a PMI server belongs to it. */
bool framework_has_pmi(enum framework f);

/* How many ports this node must choose. */
int64_t framework_ports(const struct launch_config *c);

/* Refuses what does not go together: several processes of vllm on a node, --warm with
 * a PMI server, unknown names in arguments. */
int framework_check(const struct launch_config *c, struct muster_error *err);

/* Whether these are the texts of all nodes, with that many workers together. */
int framework_nodes_check(const struct text_list *nodes, int64_t workers,
                          struct muster_error *err);

/* Lists the variables and arguments that the user has set, and that therefore stay,
 * with commas between them. */
int framework_kept(struct buf *out, const struct launch_config *c, char *const *envp);

/* For worker_env() and worker_argv(); place->nodes is there. 0 or MUSTER_ENOMEM. */
int framework_env(struct text_list *env, const struct launch_config *c,
                  const struct worker_place *p, char *const *envp);
int framework_args(struct text_list *argv, const struct launch_config *c,
                   const struct worker_place *p);
int framework_add_expanded(struct text_list *l, const char *text,
                           const struct launch_config *c, const struct worker_place *p);

/* PMI's way to say which ranks share a node: "(vector,(0,2,4))" is two nodes of four.
 */
int framework_mapping(struct buf *out, const struct text_list *nodes);

/* What templates of this file may hold in addition. */
int framework_put_coordinator(struct buf *out, const struct text_list *nodes, bool addr,
                              bool port);
int framework_put_cluster(struct buf *out, const struct text_list *nodes);

#endif
