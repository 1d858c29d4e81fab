"""List the public modules of the framework, for SEW011 and for the guide."""

from collections.abc import Mapping

PUBLIC_MODULES: Mapping[str, str] = {
    "context": "context of requests and jobs (`bound`, `current`): who caused a job, passed on to the jobs that it pushes",
    "databases": "the application's databases: choose the server that this job reads from, note its writes",
    "embedding": "a worker inside of another Python process: `EmbeddedWorker`",
    "errors": "every error of the framework, with its fields",
    "flags": "feature flags of the application: `enabled`, `set`, `clear`, `all`",
    "handlers": "error and death handlers: `on_error`, `on_death`",
    "health": "your own indicators for `defer_on_health`: `register`, and their answers",
    "lifecycle": "events of a worker process: `on_startup`, `on_quiet`, `on_shutdown`, `on_exit`, `on_heartbeat`, `on_beat`",
    "middleware": "middlewares around pushes and runs: the chains `client` and `server`",
    "pause": "your own strategies for `pause_control`: `register`",
    "sharding": "the Redis of a worker's jobs for application code: `router`, `allow_unrouted`",
    "status": "the state of a tracked job, by its id",
    "throttling": "your own load signals, which lower concurrency limits: `register`",
    "types": "types for annotations: `Json`, `Payload`, `Jid` and the words of attributes",
}
"""Module within ``framework`` -> its purpose. The names that `framework` itself exports are public too."""

RESERVED_MODULES = ("admin", "testing")
"""Public module names that the design reserves for a later release."""


def is_public(inner: str) -> bool:
    """Return whether ``framework.<inner>`` is a public module, or a name inside of one."""
    return any(inner == one or inner.startswith(f"{one}.") for one in (*PUBLIC_MODULES, *RESERVED_MODULES))
