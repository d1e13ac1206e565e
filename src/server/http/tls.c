#include "server/http/tls.h"

#include "base/log.h"

#include <errno.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SOON_S = 14 * 24 * 3600 }; /* warn if the certificate expires within two weeks */

struct tls {
    SSL_CTX *context;
    struct tls_files files;
    int64_t end_time;
};

/* ---- certificate files ---- */

/* Sets OpenSSL's first error; later ones in its queue are consequences. */
static enum tutti_status tls_fail(const char *path, const char *what, struct tutti_error *err)
{
    unsigned long code = ERR_peek_error();
    const char *reason = ERR_SYSTEM_ERROR(code) ? NULL : ERR_reason_error_string(code);
    ERR_clear_error();
    return error_set(err, TUTTI_E_FORMAT, "%s: %s%s%s%s", path, what, reason ? " (" : "",
                     reason ? reason : "", reason ? ")" : "");
}

/* OpenSSL's own errors do not name the file, and report a missing file as "no start line". */
static enum tutti_status check_readable(const char *path, struct tutti_error *err)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return error_from_errno(path, err);
    enum tutti_status st = TUTTI_OK;
    if (getc(file) == EOF)
        st = ferror(file) ? error_from_errno(path, err)
                          : error_set(err, TUTTI_E_FORMAT, "%s: the file is empty", path);
    fclose(file);
    return st;
}

/* A server cannot prompt for a passphrase; without this callback OpenSSL would do so on the terminal. */
static int no_passphrase(char *out, int n_bytes, int is_writing, void *user)
{
    (void)out, (void)n_bytes, (void)is_writing;
    *(bool *)user = true;
    return -1;
}

static enum tutti_status read_key(SSL_CTX *context, const char *path, struct tutti_error *err)
{
    bool was_asked = false;
    SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    SSL_CTX_set_default_passwd_cb_userdata(context, &was_asked);
    int ok = SSL_CTX_use_PrivateKey_file(context, path, SSL_FILETYPE_PEM);
    SSL_CTX_set_default_passwd_cb_userdata(context, NULL);
    SSL_CTX_set_default_passwd_cb(context, NULL);
    if (was_asked)
        return tls_fail(path, "the key needs a passphrase, expected one without", err);
    unsigned long code = ERR_peek_error();
    if (!ok && ERR_GET_LIB(code) == ERR_LIB_X509 && ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH)
        return tls_fail(path, "the key does not belong to the certificate", err);
    if (!ok)
        return tls_fail(path, "holds no private key in PEM", err);
    return TUTTI_OK;
}

static enum tutti_status read_files(SSL_CTX *context, const struct tls_files *files, struct tutti_error *err)
{
    enum tutti_status st = check_readable(files->cert, err);
    if (st == TUTTI_OK)
        st = check_readable(files->key, err);
    if (st == TUTTI_OK && files->client_ca)
        st = check_readable(files->client_ca, err);
    if (st == TUTTI_OK && !SSL_CTX_use_certificate_chain_file(context, files->cert))
        st = tls_fail(files->cert, "holds no certificate in PEM that can be used", err);
    if (st == TUTTI_OK)
        st = read_key(context, files->key, err);
    if (st == TUTTI_OK && !SSL_CTX_check_private_key(context))
        st = tls_fail(files->key, "the key does not belong to the certificate", err);
    if (st != TUTTI_OK || !files->client_ca)
        return st;
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(files->client_ca);
    if (!names || !SSL_CTX_load_verify_file(context, files->client_ca)) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return tls_fail(files->client_ca, "holds no certificate in PEM", err);
    }
    SSL_CTX_set_client_CA_list(context, names); /* takes ownership */
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return TUTTI_OK;
}

/* ---- protocol settings ---- */

/* RFC 7301: a client that offers protocols without this one must get an error, instead of sending
 * HTTP/2. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out,
                           const unsigned char *offered, unsigned n_offered, void *user)
{
    static const unsigned char ours[] = "\x08http/1.1";
    (void)ssl, (void)user;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, n_out, ours, sizeof ours - 1, offered, n_offered) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static enum tutti_status context_new(SSL_CTX **out, const struct tls_files *files, struct tutti_error *err)
{
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (!context)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for TLS");
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION); /* RFC 8996 deprecates older ones */
    /* HTTP framing shows where a request ends, so a connection closed without close_notify cannot
     * truncate one unnoticed. */
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                     SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS); /* saves memory of idle connections */
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); /* tickets need no memory on the server */
    static const unsigned char session_id[] = "tutti";
    SSL_CTX_set_session_id_context(context, session_id, sizeof session_id - 1);
    enum tutti_status st = read_files(context, files, err);
    if (st != TUTTI_OK) {
        SSL_CTX_free(context);
        return st;
    }
    *out = context;
    return TUTTI_OK;
}

static int64_t end_of(SSL_CTX *context)
{
    struct tm tm;
    const X509 *cert = SSL_CTX_get0_certificate(context);
    return cert && ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) ? (int64_t)timegm(&tm) : 0;
}

static void report(const struct tls *tls)
{
    char text[64];
    struct tm tm;
    time_t end = (time_t)tls->end_time;
    int64_t n_left = tls->end_time - (int64_t)time(NULL);
    gmtime_r(&end, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (n_left < SOON_S)
        log_warn("%s: the certificate %s %s", tls->files.cert, n_left < 0 ? "expired" : "expires", text);
    else
        log_info("%s: the certificate is valid until %s", tls->files.cert, text);
}

/* ---- creating and freeing ---- */

enum tutti_status tls_new(struct tls **out, const struct tls_files *files, struct tutti_error *err)
{
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for TLS");
    tls->files = *files;
    enum tutti_status st = tls_reload(tls, err);
    if (st != TUTTI_OK) {
        free(tls);
        return st;
    }
    *out = tls;
    return TUTTI_OK;
}

enum tutti_status tls_reload(struct tls *tls, struct tutti_error *err)
{
    SSL_CTX *context = NULL;
    enum tutti_status st = context_new(&context, &tls->files, err);
    if (st != TUTTI_OK)
        return st;
    SSL_CTX_free(tls->context); /* connections have references of their own */
    tls->context = context;
    tls->end_time = end_of(context);
    report(tls);
    return TUTTI_OK;
}

void tls_free(struct tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    free(tls);
}

int64_t tls_end_time(const struct tls *tls)
{
    return tls->end_time;
}

/* ---- connections ---- */

struct bufferevent *tls_accept(struct tls *tls, struct event_base *base, int fd)
{
    SSL *ssl = SSL_new(tls->context);
    if (!ssl)
        return NULL;
    struct bufferevent *bev = bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                                             BEV_OPT_CLOSE_ON_FREE);
    if (!bev) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

void tls_say_end(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (!ssl || !SSL_is_init_finished(ssl) || SSL_get_shutdown(ssl) & SSL_SENT_SHUTDOWN)
        return;
    ERR_clear_error();
    SSL_shutdown(ssl); /* if the socket is full, the client only sees the end of the connection */
    ERR_clear_error();
}

const char *tls_why(struct bufferevent *bev)
{
    unsigned long code = bufferevent_get_openssl_error(bev);
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    return reason ? reason : "the connection ended";
}
