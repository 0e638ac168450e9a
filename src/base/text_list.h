/* text_list.h - a growing list of texts, which is also how an argument vector and an
 * environment are put together. Pure memory; one owner. */
#ifndef BASE_TEXT_LIST_H
#define BASE_TEXT_LIST_H

#include "base/base.h"
#include "muster/error.h"

struct text_list {
    char **items; /* owned, and so is each item; a NULL follows the last */
    size_t count;
    int err; /* of the first addition that failed, or 0; later ones do nothing */
};

/* Replaces the text by a copy of another (NULL stays NULL). 0 or MUSTER_ENOMEM. */
int text_set(char **field, const char *text);
int text_list_add(struct text_list *l, const char *text, size_t n);

/* Replaces the entry of NAME with NAME=value, or adds it at the end. Returns l->err, as
 * text_list_add does. */
int env_put(struct text_list *l, const char *name, const char *value);
void text_list_fini(struct text_list *l);

/* The value of a variable in a list of NAME=value, or NULL. */
const char *env_get(char *const *envp, const char *name);

#endif
