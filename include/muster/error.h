/* error.h - how every muster call says what went wrong.
 *
 * A function that can fail returns 0 or one of the negative codes below, and writes the
 * reason, as a sentence for a person to read, to its last argument unless that is NULL.
 * If a pointer is NULL that must not be, it returns MUSTER_EINVAL; a function that
 * cannot fail then does nothing, or returns "", 0 or NULL. A caller that does not want
 * a result (*value, *count) may pass NULL for it, but not for an object that the
 * function makes (*out), unless the function's comment allows it.
 *
 * MUSTER_ENOMEM is final for the object that met it: every later call on that object
 * may return it, too, and the caller can only close it. It changes no other object, and
 * the library never exits for want of memory. Only what has its size from the caller
 * fails alone: if there is no memory for the keys and values of a call, that call has
 * changed nothing, and the object stays usable. */
#ifndef MUSTER_ERROR_H
#define MUSTER_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MUSTER_API __attribute__((visibility("default")))
#else
#define MUSTER_API
#endif

/* X(name, value, "short description") */
#define MUSTER_ERRORS(X)                                                               \
    X(MUSTER_ENOMEM, -1, "out of memory")                                              \
    X(MUSTER_EINVAL, -2, "invalid argument")                                           \
    X(MUSTER_EPROTO, -3, "the peer broke the protocol")                                \
    X(MUSTER_ETIMEDOUT, -4, "timed out")                                               \
    X(MUSTER_ECLOSED, -5, "the rendezvous is closed")                                  \
    X(MUSTER_ECONN, -6, "connection failed")                                           \
    X(MUSTER_ESTATE, -7, "the stored state cannot be read")                            \
    X(MUSTER_EGRACEFUL, -8, "not needed: the run ended without this node")             \
    X(MUSTER_EREFUSED, -9, "connection refused")                                       \
    X(MUSTER_EUNREACH, -10, "network or host unreachable")                             \
    X(MUSTER_ERESOLVE, -11, "host name does not resolve")                              \
    X(MUSTER_ENOTSTORE, -12, "another service answers at that address")                \
    X(MUSTER_EHANGUP, -13, "the peer closed the connection")                           \
    X(MUSTER_EEXIST, -14, "already exists")                                            \
    X(MUSTER_ENOENT, -15, "does not exist")                                            \
    X(MUSTER_EFULL, -16, "a limit is reached")                                         \
    X(MUSTER_EEMPTY, -17, "queue is empty")                                            \
    X(MUSTER_ENOTSUP, -18, "not supported")                                            \
    X(MUSTER_EIO, -19, "input or output failed")                                       \
    X(MUSTER_EINUSE, -20, "address already in use")                                    \
    X(MUSTER_ECHILD, -21, "a worker failed")                                           \
    X(MUSTER_ESIGNAL, -22, "ended by a signal")                                        \
    X(MUSTER_EACCES, -23, "permission denied")                                         \
    X(MUSTER_ECANCELED, -24, "canceled")                                               \
    X(MUSTER_EBUG, -25, "internal error")

enum muster_code {
#define MUSTER_ERROR_ENUM(name, value, text) name = value,
    MUSTER_ERRORS(MUSTER_ERROR_ENUM)
#undef MUSTER_ERROR_ENUM
};

struct muster_error {
    int code; /* 0, or a negative MUSTER_E code */
    char text[1020];
};

/* "MUSTER_ENOMEM", say; "MUSTER_E?" for a number that is not a code. */
MUSTER_API const char *muster_code_name(int code);

/* What the code means in general: "out of memory", say. */
MUSTER_API const char *muster_code_text(int code);

/* The version of the library that is running: "0.2.0", say. */
MUSTER_API const char *muster_version(void);

#ifdef __cplusplus
}
#endif
#endif
