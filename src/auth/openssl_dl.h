/* openssl_dl.h - HMAC-SHA256 of libcrypto and TLS of libssl, loaded when the first job
 * with a secret needs them; see loop/dlopen.h. Callers write DL(name), with the name as
 * in OpenSSL's manual. */
#ifndef AUTH_OPENSSL_DL_H
#define AUTH_OPENSSL_DL_H

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "muster/error.h"

#ifdef MUSTER_DLOPEN

#define CRYPTO_FUNCTIONS(X)                                                            \
    X(HMAC)                                                                            \
    X(EVP_sha256)                                                                      \
    X(BIO_new)                                                                         \
    X(BIO_s_mem)                                                                       \
    X(BIO_read)                                                                        \
    X(BIO_write)                                                                       \
    X(BIO_ctrl)                                                                        \
    X(ERR_clear_error)                                                                 \
    X(BIO_free)                                                                        \
    X(ASN1_INTEGER_set_uint64)                                                         \
    X(EVP_PKEY_free)                                                                   \
    X(EVP_PKEY_new_raw_private_key)                                                    \
    X(PEM_write_bio_PrivateKey)                                                        \
    X(PEM_write_bio_X509)                                                              \
    X(X509V3_EXT_conf_nid)                                                             \
    X(X509_EXTENSION_free)                                                             \
    X(X509_NAME_add_entry_by_txt)                                                      \
    X(X509_NAME_free)                                                                  \
    X(X509_NAME_new)                                                                   \
    X(X509_add_ext)                                                                    \
    X(X509_free)                                                                       \
    X(X509_get_serialNumber)                                                           \
    X(X509_getm_notAfter)                                                              \
    X(X509_getm_notBefore)                                                             \
    X(X509_gmtime_adj)                                                                 \
    X(X509_new)                                                                        \
    X(X509_set_issuer_name)                                                            \
    X(X509_set_pubkey)                                                                 \
    X(X509_set_subject_name)                                                           \
    X(X509_set_version)                                                                \
    X(X509_sign)

#define SSL_FUNCTIONS(X)                                                               \
    X(SSL_CTX_ctrl)                                                                    \
    X(SSL_CTX_free)                                                                    \
    X(SSL_CTX_new)                                                                     \
    X(SSL_CTX_set_ciphersuites)                                                        \
    X(SSL_CTX_set_num_tickets)                                                         \
    X(SSL_CIPHER_find)                                                                 \
    X(SSL_SESSION_free)                                                                \
    X(SSL_SESSION_new)                                                                 \
    X(SSL_SESSION_set1_master_key)                                                     \
    X(SSL_SESSION_set_cipher)                                                          \
    X(SSL_SESSION_set_protocol_version)                                                \
    X(SSL_ctrl)                                                                        \
    X(SSL_free)                                                                        \
    X(SSL_get_error)                                                                   \
    X(SSL_has_pending)                                                                 \
    X(SSL_new)                                                                         \
    X(SSL_read)                                                                        \
    X(SSL_set_accept_state)                                                            \
    X(SSL_set_bio)                                                                     \
    X(SSL_set_connect_state)                                                           \
    X(SSL_CTX_set_psk_find_session_callback)                                           \
    X(SSL_CTX_set_psk_use_session_callback)                                            \
    X(SSL_get_ex_data)                                                                 \
    X(SSL_set_ex_data)                                                                 \
    X(SSL_set_verify)                                                                  \
    X(SSL_write)                                                                       \
    X(TLS_method)

struct openssl_dl {
#define OPENSSL_MEMBER(name) __typeof__(&name) name##_;
    CRYPTO_FUNCTIONS(OPENSSL_MEMBER)
    SSL_FUNCTIONS(OPENSSL_MEMBER)
#undef OPENSSL_MEMBER
};

extern struct openssl_dl openssl_dl;

#define DL(name) openssl_dl.name##_
#else
#define DL(name) name
#endif

/* Must be called before DL(HMAC), and before DL(SSL_...). MUSTER_ENOTSUP: the library
 * is not installed, or too old. Cheap once it has succeeded; safe from any thread. */
int crypto_dl_load(struct muster_error *err);
int ssl_dl_load(struct muster_error *err);

#endif
