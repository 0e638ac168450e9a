/* torch_locations.h - what stands before `]` in our log lines. People grep torchrun's
 * logs by these places, so messages that torchrun also prints carry its (2.13) file and
 * line.
 */
#ifndef LOGS_TORCH_LOCATIONS_H
#define LOGS_TORCH_LOCATIONS_H

#define AT_DIST           "site-packages/torch/distributed/"
#define AT_OMP            AT_DIST "run.py:874"
#define AT_MASTER_ADDR    AT_DIST "run.py:855"
#define AT_NODE_RANK      AT_DIST "run.py:865"
#define AT_RUN_ID         AT_DIST "launcher/api.py:249"
#define AT_CONFIG         AT_DIST "launcher/api.py:254"
#define AT_ROUND          AT_DIST "elastic/agent/server/api.py:553"
#define AT_DEATH_SIGNAL   AT_DIST "elastic/agent/server/api.py:753"
#define AT_BARRIER_SIGNAL AT_DIST "elastic/agent/server/api.py:1005"
#define AT_BARRIER_ERROR  AT_DIST "elastic/agent/server/api.py:1008"
#define AT_HEALTH         AT_DIST "elastic/agent/server/health_check_server.py:48"
#define AT_STUCK_SOON     AT_DIST "elastic/agent/server/local_elastic_agent.py:586"
#define AT_STUCK          AT_DIST "elastic/agent/server/local_elastic_agent.py:554"
#define AT_SIGNAL_UNKNOWN AT_DIST "elastic/multiprocessing/api.py:549"
#define AT_CLOSING        AT_DIST "elastic/multiprocessing/api.py:1028"
#define AT_KILLING        AT_DIST "elastic/multiprocessing/api.py:1047"
#define AT_ABANDONED      AT_DIST "elastic/multiprocessing/api.py:1061"
#define AT_FAILED         AT_DIST "elastic/multiprocessing/api.py:1002"
#define AT_FAILED_FN      AT_DIST "elastic/multiprocessing/api.py:836"
#define AT_ERROR_FILE     AT_DIST "elastic/multiprocessing/errors/__init__.py:132"
#define AT_NO_PARENT_FILE AT_DIST "elastic/multiprocessing/errors/error_handler.py:145"
#define AT_NEW_FORMAT     AT_DIST "elastic/multiprocessing/errors/error_handler.py:105"
#define AT_OVERWRITE      AT_DIST "elastic/multiprocessing/errors/error_handler.py:156"
#define AT_TAIL           AT_DIST "elastic/multiprocessing/tail_log.py:154"
#define AT_WATCHDOG       AT_DIST "elastic/timer/file_based_local_timer.py:296"

#endif
