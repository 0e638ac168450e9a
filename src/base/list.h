/* list.h - lists that know their first and last item, of any struct that has the two
 * members `prev` and `next` (whatever they are called, since an item may be in several
 * lists). Macros, since the types differ. An item that was removed has both NULL. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <assert.h>

/* Behind `before`; before all others if that is NULL. */
#define LIST_INSERT(list, before, item, prev, next)                                    \
    do {                                                                               \
        (item)->prev = (before);                                                       \
        (item)->next = (item)->prev ? (item)->prev->next : (list)->first;              \
        *((item)->prev ? &(item)->prev->next : &(list)->first) = (item);               \
        *((item)->next ? &(item)->next->prev : &(list)->last) = (item);                \
    } while (0)

#define LIST_APPEND(list, item, prev, next)                                            \
    LIST_INSERT(list, (list)->last, item, prev, next)

#define LIST_REMOVE(list, item, prev, next)                                            \
    do {                                                                               \
        assert((item)->prev ? (item)->prev->next == (item) : (list)->first == (item)); \
        assert((item)->next ? (item)->next->prev == (item) : (list)->last == (item));  \
        *((item)->prev ? &(item)->prev->next : &(list)->first) = (item)->next;         \
        *((item)->next ? &(item)->next->prev : &(list)->last) = (item)->prev;          \
        (item)->prev = (item)->next = NULL;                                            \
    } while (0)

#endif
