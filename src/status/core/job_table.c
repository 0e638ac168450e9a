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
    if (n->facts)
        (void)buf_printf(out, "%zu", node_status_alive(n->facts));
    put_str(out, "</td><td>");
    if (n->facts)
        (void)buf_printf(out, "%llu %%",
                         (unsigned long long)(node_status_cpu(n->facts) / 10));
    put_str(out, "</td><td>");
    if (n->facts)
        put_bytes(out, node_status_memory(n->facts));
    put_str(out, "</td>");
    cell(out, n->why.n ? n->why : n->facts ? n->facts->wait : span_of(NULL, 0));
    put_str(out, "</tr>\n");
}

static void put_summary(struct buf *out, const struct job_status *j)
{
    const struct record *r = j->in->record;

    put_str(out, "<p>Job <strong>");
    put_html(out, span_str(j->in->run_id));
    put_str(out, "</strong>: <strong>");
    put_str(out, job_state_word(j->state));
    (void)buf_printf(
        out, "</strong>, %lld nodes, %lld ranks, %lld restarts.</p>\n",
        (long long)j->nodes_in, (long long)j->ranks,
        (long long)MAX_OF(r ? r->restarts : 0, j->in->own ? j->in->own->attempt : 0));
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
