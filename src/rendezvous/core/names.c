/* names.c - the words for our enums, each from its one list. */
#include "rendezvous/core/cas_node.h"

const char *rdzv_news_name(enum rdzv_news news)
{
    switch (news) {
#define NAME(name, text)                                                               \
    case RDZV_NEWS_##name:                                                             \
        return #name;
        RDZV_NEWS_KINDS(NAME)
#undef NAME
    }
    return "?";
}

const char *rdzv_event_name(enum rdzv_event_kind kind)
{
    switch (kind) {
#define NAME(name)                                                                     \
    case RDZV_EV_##name:                                                               \
        return #name;
        RDZV_EVENTS(NAME)
#undef NAME
    }
    return "?";
}
