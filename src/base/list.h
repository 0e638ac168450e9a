/* list.h - doubly linked lists with a `first` and a `last`, of any struct that has two
 * members for its neighbours. Their names are passed as prev and next, since an item
 * may be in several lists. These are macros because the types differ. An item that was
 * removed has NULL in both members. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <assert.h>

/* Inserts the item right after `before`, or first of all if that is NULL. */
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
