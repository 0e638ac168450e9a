/* mhd_dl.h - libmicrohttpd, loaded when a job wants a page; see loop/dlopen.h. http.c
 * uses the function names of its manual. */
#ifndef STATUS_MHD_DL_H
#define STATUS_MHD_DL_H

#include <microhttpd.h>

#include "base/base.h"
#include "loop/dlopen.h"

#ifdef MUSTER_DLOPEN_VIEWS

#define MHD_DL(X)                                                                      \
    X(add_response_header)                                                             \
    X(create_response_from_buffer)                                                     \
    X(create_response_from_callback)                                                   \
    X(destroy_response)                                                                \
    X(get_connection_info)                                                             \
    X(get_daemon_info)                                                                 \
    X(get_timeout)                                                                     \
    X(lookup_connection_value)                                                         \
    X(queue_response)                                                                  \
    X(resume_connection)                                                               \
    X(run)                                                                             \
    X(start_daemon)                                                                    \
    X(stop_daemon)                                                                     \
    X(suspend_connection)

#ifndef MHD_DL_PLAIN /* packaging/command.c needs the list and the names themselves */

static struct {
#define MEMBER(name) __typeof__(&MHD_##name) name;
    MHD_DL(MEMBER)
#undef MEMBER
} mhd_dl;

static const struct dlopen_symbol mhd_symbols[] = {
#define SYMBOL(name) { "MHD_" #name, &mhd_dl.name },
    MHD_DL(SYMBOL)
#undef SYMBOL
};

static struct dlopen_library mhd_library = {
    .file = "libmicrohttpd.so.12",
    .used = "the page is served by libmicrohttpd",
    .remedy = "Install it (Debian: libmicrohttpd12).",
    .symbols = mhd_symbols,
    .count = ARRAY_LEN(mhd_symbols),
};

#define MHD_add_response_header           mhd_dl.add_response_header
#define MHD_create_response_from_buffer   mhd_dl.create_response_from_buffer
#define MHD_create_response_from_callback mhd_dl.create_response_from_callback
#define MHD_destroy_response              mhd_dl.destroy_response
#define MHD_get_connection_info           mhd_dl.get_connection_info
#define MHD_get_daemon_info               mhd_dl.get_daemon_info
#define MHD_get_timeout                   mhd_dl.get_timeout
#define MHD_lookup_connection_value       mhd_dl.lookup_connection_value
#define MHD_queue_response                mhd_dl.queue_response
#define MHD_resume_connection             mhd_dl.resume_connection
#define MHD_run                           mhd_dl.run
#define MHD_start_daemon                  mhd_dl.start_daemon
#define MHD_stop_daemon                   mhd_dl.stop_daemon
#define MHD_suspend_connection            mhd_dl.suspend_connection

/* Before anything else of libmicrohttpd; see dlopen_load(). */
#define mhd_dl_load(err) dlopen_load(&mhd_library, err)
#endif

#else
#define mhd_dl_load(err) ((void)(err), 0) /* It is inside. */
#endif

#endif
