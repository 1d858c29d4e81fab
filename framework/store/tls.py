"""Turn the errors of OpenSSL into advice that names the wrong setting."""

import traceback

_NO_TLS = "the server does not speak TLS at this port: use its TLS port, or write redis:// and remove tls"
_ENDED = "TLS: the connection ended after the client's handshake and before any answer,"
_ENDED_PLAIN = "the connection, which has no SSL or TLS, ended before any answer"
_ENDED_WITHOUT_CERTIFICATE = f"{_ENDED} without a client certificate"
_ENDED_WITH_CERTIFICATE = f"{_ENDED} with a client certificate"
_ADVICE = (
    (("certificate has expired",), "its certificate has expired: renew it on the server"),
    (("certificate is not yet valid",), "its certificate is not valid yet: check the clocks of both hosts"),
    (
        ("Hostname mismatch", "IP address mismatch", "doesn't match"),
        "its certificate names another host: connect by a name that it has, or set tls.check_hostname: false",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        "its certificate is not signed by a trusted authority: set tls.ca_file to the authority's certificate",
    ),
    (
        ("CERTIFICATE_REQUIRED", "certificate required", "HANDSHAKE_FAILURE", "handshake failure"),
        "the server demands a client certificate: set tls.cert_file and tls.key_file (on the server: tls-auth-clients)",
    ),
    (
        ("UNKNOWN_CA", "unknown ca", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED"),
        "the server refuses the client certificate: tls.cert_file must be valid and signed by its tls-ca-cert-file",
    ),
    (
        (_ENDED_PLAIN,),
        "the server ended the connection before any answer: if this is its TLS port, write rediss:// or set tls: true",
    ),
    (
        (_ENDED_WITHOUT_CERTIFICATE,),
        "the server ended the connection, as if it demanded a client certificate: set tls.cert_file and tls.key_file",
    ),
    (
        (_ENDED_WITH_CERTIFICATE,),
        "the server ended the connection, as if it refused tls.cert_file: that must be valid and signed by its tls-ca-cert-file",
    ),
    (
        (
            "WRONG_VERSION_NUMBER",
            "RECORD_LAYER_FAILURE",
            "record layer failure",
            "UNEXPECTED_EOF_WHILE_READING",
            "_PROTOCOL]",
        ),
        _NO_TLS,
    ),
    (
        ("UNSUPPORTED_PROTOCOL", "PROTOCOL_VERSION", "NO_SHARED_CIPHER"),
        "client and server share no version of TLS or no cipher",
    ),
)


def tls_advice(error: BaseException | None) -> str | None:
    """Return the advice for a TLS error, or ``None`` for another error."""
    while error is not None:
        # A Redis without TLS takes the handshake for the start of a command and waits for the rest.
        if isinstance(error, TimeoutError) and _in_handshake(error):
            return _NO_TLS
        text = str(error)
        for words, advice in _ADVICE:
            if ("SSL" in text or "certificate" in text) and any(word in text for word in words):
                return advice
        error = error.__cause__ or error.__context__
    return None


def ended_unanswered(*, secure: bool, certified: bool) -> str:
    """Return the marker for ``tls_advice`` of a connection that the server ended before it answered.

    In TLS 1.3 the client's side of the handshake ends before the server checks the client's certificate. The refusal is an alert at
    the first read or, if the server has already closed the connection, only an end or a reset at the first read or write.
    """
    if not secure:
        return _ENDED_PLAIN
    return _ENDED_WITH_CERTIFICATE if certified else _ENDED_WITHOUT_CERTIFICATE


def _in_handshake(error: BaseException) -> bool:
    return any(frame.f_code.co_name == "do_handshake" for frame, _ in traceback.walk_tb(error.__traceback__))
