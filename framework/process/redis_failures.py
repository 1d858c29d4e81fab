"""Tell the kinds of Redis failures apart, with the message of each."""

import ssl

from redis.exceptions import AuthenticationError, ClusterDownError, ReadOnlyError, ResponseError

_NO_ANSWER = "no answer"
_LOGIN_REFUSED = "login refused"
_CERTIFICATE_REFUSED = "certificate refused"
MESSAGES = {
    _NO_ANSWER: "Redis does not answer, and the process tries again; check the server and the network",
    _LOGIN_REFUSED: "Redis refuses the user or the password, and the process tries again; correct the setting or the ACL",
    _CERTIFICATE_REFUSED: "the process does not trust the certificate of Redis, and tries again",
}
"""The message of each kind that concerns all components."""


def failure_kind(component: str, error: BaseException) -> str:
    """Return the kind of a failure: one that concerns all components, or the name of the component that was refused.

    A refusal (a full server, a key of a wrong type) concerns one component only.
    """
    if isinstance(error, AuthenticationError):
        return _LOGIN_REFUSED
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        return _CERTIFICATE_REFUSED
    refused = isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError | ClusterDownError)
    return component if refused else _NO_ANSWER
