/* job_table.c - the job's status as an HTML table, for browsers without scripts. */
#include "status/core/job_status.h"
#include "status/core/put.h"

#define ROWS_MAX 1000u

static void cell(struct buf *out, struct span text)
{
    put_str(out, "<td>");
    put_html(out, text);
    put_str(out, "</td>");
}

static void put_row(struct buf *out, const struct job_node *n)
{
    put_str(out, "<tr><th scope=\"row\">");
    put_html(out, n->host);
    put_str(out, "</th><td>");
    if (n->first_rank >= 0)
        (void)buf_printf(out, n->ranks > 1 ? "%lld&ndash;%lld" : "%lld",
                         (long long)n->first_rank,
                         (long long)(n->first_rank + n->ranks - 1));
    put_str(out, "</td>");
    cell(out, span_str(node_state_word(n->state)));
    put_str(out, "<td>");
    if (n->reported)
        put_int(out, n->alive);
    put_str(out, "</td><td>");
    if (n->reported)
        (void)buf_printf(out, "%llu %%", (unsigned long long)(n->cpu / 10));
    put_str(out, "</td><td>");
    if (n->reported)
        put_bytes(out, n->memory);
    put_str(out, "</td>");
    cell(out, n->why.n ? n->why : n->wait);
    put_str(out, "</tr>\n");
}

static void put_summary(struct buf *out, const struct job_status *j)
{
    put_str(out, "<p>Job <strong>");
    put_html(out, j->run_id);
    put_str(out, "</strong>: <strong>");
    put_str(out, job_state_word(j->state));
    (void)buf_printf(out, "</strong>, %lld nodes, %lld ranks, %lld restarts.</p>\n",
                     (long long)j->nodes_in, (long long)j->ranks,
                     (long long)j->restarts);
}

static void put_verdict(struct buf *out, const struct record_entry *v)
{
    put_str(out, "<p>How it ended: ");
    put_str(out, record_cause_name(v->cause));
    if (v->rank >= 0)
        (void)buf_printf(out, ", rank %lld", (long long)v->rank);
    if (v->host.n) {
        put_str(out, " on ");
        put_html(out, v->host);
    }
    if (v->text.n) {
        put_str(out, ": ");
        put_html(out, v->text);
    }
    put_str(out, "</p>\n<pre>");
    put_html(out, v->body);
    put_str(out, "</pre>\n");
}

void job_status_table(struct buf *out, const struct job_status *j)
{
    put_summary(out, j);
    if (j->have_verdict)
        put_verdict(out, &j->verdict);
    put_str(out, "<table><caption>Nodes</caption>\n<thead><tr><th scope=\"col\">node"
                 "</th><th scope=\"col\">ranks</th><th scope=\"col\">state</th>"
                 "<th scope=\"col\">workers</th><th scope=\"col\">CPU</th>"
                 "<th scope=\"col\">memory</th><th scope=\"col\">remarks</th>"
                 "</tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < j->count && i < ROWS_MAX; i++)
        put_row(out, &j->nodes[i]);
    put_str(out, "</tbody></table>\n");
    if (j->count > ROWS_MAX)
        (void)buf_printf(out, "<p>And %zu more.</p>\n", j->count - ROWS_MAX);
}
