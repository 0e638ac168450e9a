/* curl_dl.h - libcurl, loaded when the first etcd client needs it.
 *
 * It brings some thirty libraries along. Linked in the usual way they would cost every
 * start of every command several milliseconds and megabytes, and most jobs never speak
 * to etcd. With MUSTER_DLOPEN (shared builds) the functions below are looked up by name
 * at first use; callers write the names as in libcurl's manual. */
#ifndef NET_CURL_DL_H
#define NET_CURL_DL_H

#include <curl/curl.h>

#include "muster/error.h"

#ifdef MUSTER_DLOPEN

#undef curl_easy_setopt /* macros that check types, for compilers that can */
#undef curl_easy_getinfo
#undef curl_multi_setopt

#define CURL_DL(X)                                                                     \
    X(easy_cleanup)                                                                    \
    X(easy_getinfo)                                                                    \
    X(easy_init)                                                                       \
    X(easy_perform)                                                                    \
    X(easy_setopt)                                                                     \
    X(easy_strerror)                                                                   \
    X(multi_add_handle)                                                                \
    X(multi_assign)                                                                    \
    X(multi_cleanup)                                                                   \
    X(multi_info_read)                                                                 \
    X(multi_init)                                                                      \
    X(multi_remove_handle)                                                             \
    X(multi_setopt)                                                                    \
    X(multi_socket_action)                                                             \
    X(slist_append)                                                                    \
    X(slist_free_all)

struct curl_dl {
#define CURL_DL_MEMBER(name) __typeof__(&curl_##name) name;
    CURL_DL(CURL_DL_MEMBER)
#undef CURL_DL_MEMBER
};

extern struct curl_dl curl_dl;

#define curl_easy_cleanup        curl_dl.easy_cleanup
#define curl_easy_getinfo        curl_dl.easy_getinfo
#define curl_easy_init           curl_dl.easy_init
#define curl_easy_perform        curl_dl.easy_perform
#define curl_easy_setopt         curl_dl.easy_setopt
#define curl_easy_strerror       curl_dl.easy_strerror
#define curl_multi_add_handle    curl_dl.multi_add_handle
#define curl_multi_assign        curl_dl.multi_assign
#define curl_multi_cleanup       curl_dl.multi_cleanup
#define curl_multi_info_read     curl_dl.multi_info_read
#define curl_multi_init          curl_dl.multi_init
#define curl_multi_remove_handle curl_dl.multi_remove_handle
#define curl_multi_setopt        curl_dl.multi_setopt
#define curl_multi_socket_action curl_dl.multi_socket_action
#define curl_slist_append        curl_dl.slist_append
#define curl_slist_free_all      curl_dl.slist_free_all

#endif

/* Must be called before anything else of libcurl. MUSTER_ENOTSUP: it is not installed.
 * Cheap once it has succeeded; safe from several threads. */
int curl_dl_load(struct muster_error *err);

/* OpenSSL's description of the result of a verification. */
const char *curl_dl_verify_text(long result);

#endif
