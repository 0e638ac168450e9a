/* news.h - what the agent must be told while its workers run, without asking for it. */
#ifndef RENDEZVOUS_CORE_NEWS_H
#define RENDEZVOUS_CORE_NEWS_H

/* X(name, "short description") */
#define RDZV_NEWS_KINDS(X)                                                             \
    X(WAITING, "a node waits for the next round")                                      \
    X(LOST, "a member of the running round is gone")                                   \
    X(MOVED_ON, "a member of the running round waits for the next one")                \
    X(EVICTED, "the others have dropped us")                                           \
    X(CUT_OFF, "the others may drop us soon, or have done so: see fence.h")            \
    X(CLOSED, "the run id was closed")                                                 \
    X(DESERTED, "the run id was closed, and a member has left since")                  \
    X(BACKEND, "the store is unreachable or unreadable; err says why")

enum rdzv_news {
#define RDZV_NEWS_ENUM(name, text) RDZV_NEWS_##name,
    RDZV_NEWS_KINDS(RDZV_NEWS_ENUM)
#undef RDZV_NEWS_ENUM
};

#endif
