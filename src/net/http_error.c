/* http_error.c - explains why a transfer failed, with a message for each cause. */
#include <errno.h>
#include <openssl/x509_vfy.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "net/http_int.h"

static bool says(const char *text, const char *word)
{
    return strcasestr(text, word) != NULL;
}

/* What OpenSSL found wrong with the server's certificate. */
static int verify_error(CURL *easy, const char *text, const struct http_tls *tls,
                        struct muster_error *err)
{
    long result = X509_V_OK;

    (void)curl_easy_getinfo(easy, CURLINFO_SSL_VERIFYRESULT, &result);
    if (result == X509_V_ERR_CERT_HAS_EXPIRED)
        return err_set(err, MUSTER_EACCES,
                       "the server's certificate has expired: renew it, or set this "
                       "machine's clock right");
    if (result == X509_V_ERR_CERT_NOT_YET_VALID)
        return err_set(err, MUSTER_EACCES,
                       "the server's certificate is not valid yet: is this machine's "
                       "clock right?");
    if (result == X509_V_OK || result == X509_V_ERR_HOSTNAME_MISMATCH ||
        result == X509_V_ERR_IP_ADDRESS_MISMATCH || says(text, "subject name"))
        return err_set(err, MUSTER_EACCES,
                       "the server's certificate is for another name: use in the "
                       "endpoint a name or address that the certificate lists (%s)",
                       text);
    return err_set(err, MUSTER_EACCES,
                   "the server's certificate is not signed by %s (%s): give the CA of "
                   "the cluster as ca_cert (for the backend etcd: cacert)",
                   tls->ca_file ? tls->ca_file : "a CA of this system",
                   curl_dl_verify_text(result));
}

/* A handshake that fails before the certificate is verified, or right after. 0: it is
 * another error. */
static int tls_error(const char *text, const struct http_tls *tls,
                     struct muster_error *err)
{
    if (says(text, "SSL_ERROR_SYSCALL"))
        return err_set(
            err, MUSTER_ECONN,
            "the server hung up when TLS began (%s): if it speaks plain HTTP "
            "at this port, use protocol=http",
            text);
    if (says(text, "wrong version number") || says(text, "packet length too long"))
        return err_set(err, MUSTER_EACCES,
                       "the server does not speak TLS at this port: use protocol=http, "
                       "or the port of its https listener");
    if (says(text, "certificate required") || says(text, "bad certificate") ||
        says(text, "handshake failure"))
        return err_set(err, MUSTER_EACCES,
                       "the server asks for a client certificate%s (%s): give ssl_cert "
                       "and ssl_cert_key (for the backend etcd: cert and key), signed "
                       "by a CA that the server trusts",
                       tls->cert_file ? " and does not take ours" : "", text);
    if (says(text, "unknown ca") || says(text, "certificate expired") ||
        says(text, "certificate unknown"))
        return err_set(err, MUSTER_EACCES,
                       "the server refuses our client certificate %s (%s)",
                       tls->cert_file ? tls->cert_file : "(none)", text);
    return 0;
}

static int connect_error(CURL *easy, const char *text, struct muster_error *err)
{
    long os = 0;

    (void)curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &os);
    if (os == ECONNREFUSED)
        return err_set(
            err, MUSTER_EREFUSED,
            "connection refused: nothing listens there. Is etcd running, and "
            "is this its client port (2379 by default, 2380 is for peers)?");
    if (os == EHOSTUNREACH || os == ENETUNREACH)
        return err_set(err, MUSTER_EUNREACH, "no route to that address");
    return err_set(err, MUSTER_ECONN, "cannot connect (%s)", text);
}

/* A server with TLS 1.3 refuses a client's certificate only after the handshake, and
 * its reason may get lost when it closes the connection. */
static bool fresh_tls(CURL *easy)
{
    curl_off_t tls_us = 0;
    long made = 0, status = 0;

    (void)curl_easy_getinfo(easy, CURLINFO_APPCONNECT_TIME_T, &tls_us);
    (void)curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &made);
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    return tls_us > 0 && made > 0 && status == 0;
}

static int other_error(CURL *easy, CURLcode code, const char *text,
                       const struct http_tls *tls, struct muster_error *err)
{
    switch ((int)code) {
    case CURLE_OUT_OF_MEMORY:
        return err_nomem(err);
    case CURLE_WRITE_ERROR:
        return err_set(err, MUSTER_EFULL, "the answer is larger than allowed");
    case CURLE_UNSUPPORTED_PROTOCOL: /* "Received HTTP/0.9 when not allowed" */
    case CURLE_WEIRD_SERVER_REPLY:
        return err_set(err, MUSTER_ENOTSTORE,
                       "what answers there does not speak HTTP: check host and port");
    case CURLE_GOT_NOTHING:
        return err_set(err, MUSTER_EHANGUP,
                       "the server hung up without an answer: if it wants TLS at this "
                       "port, use protocol=https");
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
        if (fresh_tls(easy))
            return err_set(
                err, MUSTER_EHANGUP,
                "the server hung up right after TLS was set up (%s): perhaps "
                "it asks for a client certificate and does not take ours "
                "(%s)",
                text, tls->cert_file ? tls->cert_file : "none given");
        return err_set(err, MUSTER_EHANGUP,
                       "the connection broke before the answer was whole (%s)", text);
    }
    return err_set(err, MUSTER_ECONN, "the request failed (%s)", text);
}

int http_error(CURL *easy, CURLcode code, const char *text, const struct http_tls *tls,
               struct muster_error *err)
{
    int rc;

    if (!text[0])
        text = curl_easy_strerror(code);
    switch ((int)code) {
    case CURLE_COULDNT_RESOLVE_HOST:
        return err_set(err, MUSTER_ERESOLVE, "the host name does not resolve (%s)",
                       text);
    case CURLE_COULDNT_CONNECT:
        return connect_error(easy, text, err);
    case CURLE_OPERATION_TIMEDOUT:
        return err_set(err, MUSTER_ETIMEDOUT, "no answer in time (%s)", text);
    case CURLE_PEER_FAILED_VERIFICATION:
        return verify_error(easy, text, tls, err);
    case CURLE_SSL_CACERT_BADFILE:
        return err_set(err, MUSTER_EINVAL, "the CA file %s cannot be read (%s)",
                       tls->ca_file ? tls->ca_file : "of the system", text);
    case CURLE_SSL_CERTPROBLEM:
        return err_set(err, MUSTER_EINVAL,
                       "the client certificate %s and its key %s cannot be used (%s): "
                       "both are PEM files, and the key must belong to the certificate",
                       tls->cert_file ? tls->cert_file : "(none)",
                       tls->key_file ? tls->key_file : "(in the same file)", text);
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        rc = tls_error(text, tls, err);
        if (rc < 0)
            return rc;
    }
    return other_error(easy, code, text, tls, err);
}
