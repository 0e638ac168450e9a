/* page.h - the page (page.html), built into the program by embed.py. It is in three
 * parts; the title and the table for browsers without scripts go between them. */
#ifndef STATUS_PAGE_H
#define STATUS_PAGE_H

extern const char page_before_title[], page_before_table[], page_after_table[];
extern const char page_policy[]; /* the header Content-Security-Policy */

#endif
