/* help.h - texts made from the table of options: --help and the manual page.
 * Pure: everything goes into a buffer. All return 0 or MUSTER_ENOMEM. */
#ifndef LAUNCH_CORE_HELP_H
#define LAUNCH_CORE_HELP_H

#include "launch/core/options.h"

/* --help: every option, in groups, `columns` wide. */
int help_text(struct buf *out, const char *prog, size_t columns, bool launch);

/* -h: what most people need. */
int help_short(struct buf *out, const char *prog, size_t columns, bool launch);

/* What muster-run(1) has of options, settings and examples, in troff. */
int help_man_page(struct buf *out);

/* Appends the name of an option's value: "NPROC_PER_NODE", "{spawn,fork,forkserver}",
 * nothing for flags. If memory runs out, buf_error() says so. */
void help_metavar(struct buf *out, const struct option_spec *s);

/* What a beginner wants to do, and the command for it. The last one has a NULL. */
struct help_example {
    const char *what, *line, *more; /* more: a second line, or NULL */
};

extern const struct help_example help_examples[];

#endif
