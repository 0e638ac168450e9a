/* page.h - the page (page.html), built into the program by embed.py: in three parts,
 * between which the title and the table for browsers without scripts are put. */
#ifndef STATUS_PAGE_H
#define STATUS_PAGE_H

extern const char page_before_title[], page_before_table[], page_after_table[];
extern const char page_policy[]; /* the header Content-Security-Policy */

#endif
