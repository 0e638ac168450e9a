/* help.h - texts made from the table of options: --help and the manual page.
 * Pure: everything goes into a buffer. All return 0 or MUSTER_ENOMEM. */
#ifndef LAUNCH_CORE_HELP_H
#define LAUNCH_CORE_HELP_H

#include "launch/core/options.h"

/* In the layout of Python's argparse, `columns` wide. */
int help_text(struct buf *out, const char *prog, size_t columns, bool launch);

/* muster-run(1), in troff. */
int help_man_page(struct buf *out, const char *version);

/* "NPROC_PER_NODE", "{spawn,fork,forkserver}"; nothing for flags. The buffer remembers
 * a failure. */
void help_metavar(struct buf *out, const struct option_spec *s);

/* What a beginner wants to do, and the lines for it; a NULL ends them. */
struct help_example {
    const char *what, *line, *more; /* more: a second line, or NULL */
};

extern const struct help_example help_examples[];

#endif
