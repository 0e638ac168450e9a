/* config.c - making, changing and freeing a launch configuration; see config.h. */
#include "launch/core/config.h"

#include <assert.h>

#include "base/err.h"
#include "base/mem.h"

const char *hang_action_name(enum hang_action action)
{
    static const char *const names[HANG_ACTIONS] = { "report", "restart", "stop" };

    assert(action < HANG_ACTIONS);
    return names[action];
}

int launch_config_init(struct launch_config *c, struct muster_error *err)
{
    *c = (struct launch_config){
        .nproc = 1,
        .monitor_interval_s = 0.1,
        .shutdown_timeout_s = 30,
        .restart_grace_ms = RESTART_GRACE_MOST_MS,
    };
    if (params_init(&c->rdzv, "static", "", "none", 1, 1, NULL, err) == 0 &&
        text_set(&c->role, "default") == 0 &&
        text_set(&c->start_method, "spawn") == 0 &&
        text_set(&c->event_handler, "null") == 0 &&
        text_set(&c->metrics_handler, "null") == 0 &&
        text_set(&c->signals, "SIGTERM,SIGINT,SIGHUP,SIGQUIT") == 0)
        return 0;
    launch_config_fini(c);
    return err_nomem(err);
}

void launch_config_fini(struct launch_config *c)
{
    if (!c)
        return;
    char *const texts[] = { c->role,    c->start_method,  c->event_handler,
                            c->signals, c->log_dir,       c->prefix_template,
                            c->script,  c->python,        c->metrics_handler,
                            c->title,   c->warm,          c->status_http,
                            c->hang,    c->progress_file, c->report,
                            c->net,     c->failure,       c->policy,
                            c->notice,  c->on_notice };

    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        mem_free(texts[i]);
    params_fini(&c->rdzv);
    mem_free(c->filter.ranks);
    text_list_fini(&c->stdout_needles);
    text_list_fini(&c->stderr_needles);
    text_list_fini(&c->args);
    text_list_fini(&c->env);
    text_list_fini(&c->notify);
    *c = (struct launch_config){ 0 };
}
