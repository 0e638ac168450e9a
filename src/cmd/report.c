/* report.c - `muster report`: shows what --report=FILE wrote, as text, and as the page
 * that the job would have served, in one file. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "cmd/cmd.h"
#include "loop/file.h"
#include "status/core/put.h"
#include "status/core/report_status.h"
#include "status/core/status_text.h"
#include "status/page.h"

#define PROG       "muster report"
#define REPORT_MAX (16u << 20) /* bytes; ours have less than one MiB */

static const char help[] =
    "usage: muster report FILE [-o PAGE]\n"
    "\n"
    "Shows the report of a job that `muster run --report=FILE` has written: how it\n"
    "ended and why, its rounds and restarts, its nodes.\n"
    "\n"
    "  -o, --output PAGE  also write the job's page, one HTML file that needs no "
    "other\n"
    "  -h, --help         show this text\n";

static int read_report(const char *path, json_t **out, struct muster_error *err)
{
    json_error_t why;
    struct buf text;

    buf_init(&text, REPORT_MAX);
    const int rc = file_read_all(path, &text);
    if (rc != 0) {
        buf_fini(&text);
        return err_set(err, MUSTER_EIO, "cannot read %s: %s", path,
                       rc == MUSTER_EIO ? strerror(errno)
                                        : "it is too large for a report");
    }
    *out = json_loadb((const char *)buf_data(&text), buf_len(&text), 0, &why);
    buf_fini(&text);
    if (!*out)
        return err_set(err, MUSTER_EINVAL, "%s is not JSON: line %d, column %d: %s",
                       path, why.line, why.column, why.text);
    return 0;
}

/* The status, and what the verdict has beyond it. */
static void put_summary(struct buf *out, const struct job_status *j)
{
    static const struct status_style style = { .columns = 120 };
    struct span lines = j->verdict.body;

    status_text(out, j, &style);
    if (j->verdict.path.n) {
        put_str(out, "  its log: ");
        put_plain(out, j->verdict.path);
        put_str(out, "\n");
    }
    if (lines.n)
        put_str(out, "  its last words:\n");
    while (lines.n) {
        put_str(out, "    ");
        put_plain(out, span_take_line(&lines));
        put_str(out, "\n");
    }
}

/* Without scripts the page shows the summary; with them, it draws what stands below. */
static void put_page(struct buf *out, const struct job_status *j, struct span summary)
{
    put_str(out, page_before_title);
    put_html(out, j->run_id);
    put_str(out, page_before_table);
    put_str(out, "<pre>");
    for (struct span rest = summary; rest.n;) { /* put_html() has no newlines. */
        put_html(out, span_take_line(&rest));
        put_str(out, "\n");
    }
    put_str(out, "</pre>\n<script type=\"application/json\" id=\"told\">");
    job_status_json(out, j, 0, true); /* has no "<" that could end the script */
    put_str(out, "</script>");
    put_str(out, page_after_table);
}

static int write_page(const char *path, const struct job_status *j, struct span summary,
                      struct muster_error *err)
{
    struct buf page;
    FILE *f;

    buf_init(&page, SIZE_MAX);
    put_page(&page, j, summary);
    f = buf_error(&page) ? NULL : fopen(path, "we");
    const bool written =
        f && fwrite(buf_data(&page), 1, buf_len(&page), f) == buf_len(&page);
    const int why = errno;
    if ((f && fclose(f) != 0) || !written)
        (void)err_set(err, MUSTER_EIO, "cannot write %s: %s", path,
                      strerror(written ? errno : why));
    buf_fini(&page);
    return err->code;
}

static int report_show(const char *path, const char *output, struct muster_error *err)
{
    json_t *report = NULL;
    struct job_status status = { 0 };
    struct muster_error why = { 0 };
    struct buf text;
    int rc = read_report(path, &report, err);

    buf_init(&text, SIZE_MAX);
    if (rc == 0 && report_status(report, &status, &why) != 0)
        rc = err_set(err, why.code, "%s: %s", path, why.text);
    if (rc == 0) {
        put_summary(&text, &status);
        (void)fwrite(buf_data(&text), 1, buf_len(&text), stdout);
        if (fflush(stdout) != 0)
            rc =
                err_set(err, MUSTER_EIO, "cannot write to stdout: %s", strerror(errno));
    }
    if (rc == 0 && output)
        rc = write_page(output, &status, buf_span(&text), err);
    buf_fini(&text);
    job_status_fini(&status);
    json_decref(report);
    return rc;
}

int cmd_report(int argc, char **argv)
{
    static const struct option options[] = {
        { "output", required_argument, NULL, 'o' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    struct muster_error err = { 0 };
    const char *output = NULL;

    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":o:h", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return 0;
        }
        if (c != 'o') {
            (void)cmd_bad_option(c, argv[optind - 1], options, PROG, &err);
            cmd_error(PROG, &err);
            return 2;
        }
        output = optarg;
    }
    if (argc - optind != 1) {
        (void)err_set(&err, MUSTER_EINVAL, "name one report; see `%s --help`", PROG);
        cmd_error(PROG, &err);
        return 2;
    }
    if (report_show(argv[optind], output, &err) == 0)
        return 0;
    cmd_error(PROG, &err);
    return 1;
}
