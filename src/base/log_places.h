/* log_places.h - what stands before `]` in our log lines. People grep torchrun's logs
 * by these places, so messages that torchrun also prints carry its (2.13) file and
 * line. */
#ifndef BASE_LOG_PLACES_H
#define BASE_LOG_PLACES_H

#define LOG_DIST  "site-packages/torch/distributed/"
#define LOG_TORCH 1u /* it listens to TORCH_LOGS, as in torchrun, not to LOGLEVEL */
#define LOG_PLAIN 2u /* how the job fares: "muster: ..." in place of time and place */
/* On a terminal (struct log_screen, brief): */
#define LOG_ADVICE  4u /* at most two of these are said there */
#define LOG_CHATTER 8u /* not said there: our own lines have it, in fewer words */

/* X(place, text, flags) */
#define LOG_PLACES(X)                                                                  \
    X(AT_OMP, LOG_DIST "run.py:874", LOG_ADVICE)                                       \
    X(AT_MASTER_ADDR, LOG_DIST "run.py:855", LOG_CHATTER)                              \
    X(AT_NODE_RANK, LOG_DIST "run.py:865", LOG_ADVICE)                                 \
    X(AT_RUN_ID, LOG_DIST "launcher/api.py:249", LOG_ADVICE)                           \
    X(AT_CONFIG, LOG_DIST "launcher/api.py:254", 0)                                    \
    X(AT_ROUND, LOG_DIST "elastic/agent/server/api.py:553", 0)                         \
    X(AT_DEATH_SIGNAL, LOG_DIST "elastic/agent/server/api.py:753", LOG_CHATTER)        \
    X(AT_BARRIER_SIGNAL, LOG_DIST "elastic/agent/server/api.py:1005", LOG_CHATTER)     \
    X(AT_BARRIER_ERROR, LOG_DIST "elastic/agent/server/api.py:1008", 0)                \
    X(AT_HEALTH, LOG_DIST "elastic/agent/server/health_check_server.py:48", 0)         \
    X(AT_STUCK_SOON, LOG_DIST "elastic/agent/server/local_elastic_agent.py:586", 0)    \
    X(AT_STUCK, LOG_DIST "elastic/agent/server/local_elastic_agent.py:554", 0)         \
    X(AT_SIGNAL_UNKNOWN, LOG_DIST "elastic/multiprocessing/api.py:549", LOG_TORCH)     \
    X(AT_CLOSING, LOG_DIST "elastic/multiprocessing/api.py:1028",                      \
      LOG_TORCH | LOG_CHATTER)                                                         \
    X(AT_KILLING, LOG_DIST "elastic/multiprocessing/api.py:1047",                      \
      LOG_TORCH | LOG_CHATTER)                                                         \
    X(AT_ABANDONED, LOG_DIST "elastic/multiprocessing/api.py:1061", LOG_TORCH)         \
    X(AT_FAILED, LOG_DIST "elastic/multiprocessing/api.py:1002",                       \
      LOG_TORCH | LOG_CHATTER)                                                         \
    X(AT_FAILED_FN, LOG_DIST "elastic/multiprocessing/api.py:836",                     \
      LOG_TORCH | LOG_CHATTER)                                                         \
    X(AT_ERROR_FILE, LOG_DIST "elastic/multiprocessing/errors/__init__.py:132", 0)     \
    X(AT_NO_PARENT_FILE,                                                               \
      LOG_DIST "elastic/multiprocessing/errors/error_handler.py:145",                  \
      LOG_TORCH | LOG_CHATTER)                                                         \
    X(AT_NEW_FORMAT, LOG_DIST "elastic/multiprocessing/errors/error_handler.py:105",   \
      LOG_TORCH | LOG_CHATTER)                                                         \
    X(AT_OVERWRITE, LOG_DIST "elastic/multiprocessing/errors/error_handler.py:156",    \
      LOG_TORCH | LOG_CHATTER)                                                         \
    X(AT_TAIL, LOG_DIST "elastic/multiprocessing/tail_log.py:154", LOG_TORCH)          \
    X(AT_WATCHDOG, LOG_DIST "elastic/timer/file_based_local_timer.py:296", 0)          \
    X(AT_RENDEZVOUS, "muster/rendezvous", LOG_TORCH)                                   \
    X(AT_ADVICE, "muster/rendezvous", LOG_TORCH | LOG_ADVICE)                          \
    X(AT_ECHO, "muster/rendezvous", LOG_TORCH | LOG_CHATTER)                           \
    X(AT_ENDPOINT, "muster/run", LOG_ADVICE)                                           \
    X(AT_AGENT, "muster/agent", 0)                                                     \
    X(AT_CAUSE, "muster/agent", LOG_CHATTER)                                           \
    X(AT_JOB, "muster/agent", LOG_PLAIN)                                               \
    X(AT_HANG, "muster/hang", 0)                                                       \
    X(AT_STACKS, "muster/stacks", 0)                                                   \
    X(AT_WARM, "muster/warm", 0)                                                       \
    X(AT_LOGS, "muster/logs", 0)                                                       \
    X(AT_LOG, "muster/log", 0)                                                         \
    X(AT_LAUNCH, "muster/launch", 0)                                                   \
    X(AT_RUN, "muster/run", 0)

#define LOG_PLACE_ITEM(place, text, flags) place,
enum log_place { LOG_PLACES(LOG_PLACE_ITEM) };
#undef LOG_PLACE_ITEM

#endif
