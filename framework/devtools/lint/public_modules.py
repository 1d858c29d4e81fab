"""List the public modules of the framework, for SEW011 and for the guide."""

from collections.abc import Mapping

PUBLIC_MODULES: Mapping[str, str] = {
    "active_job": "exchange jobs with Rails: push an Active Job by its name (`enqueue`), read a wrapped one (`unwrap`)",
    "admin": "look at jobs, queues and processes on the shards, and act on them: the data API",
    "batches": "jobs whose common end matters: `Batch`, with callbacks",
    "context": "context of requests and jobs (`bound`, `current`): the cause of a job, passed on to the jobs that it pushes",
    "databases": "the application's databases: choose the server that this job reads from, note its writes",
    "embedding": "a worker inside of another Python process: `EmbeddedWorker`",
    "enumerators": "items of iterable workers with their cursors: lists, SQL rows, CSV and .xlsx files, Redis sets and hashes",
    "errors": "every error of the framework, with its fields",
    "flags": "feature flags of the application: `enabled`, `set`, `clear`, `all`",
    "handlers": "error and death handlers: `on_error`, `on_death`",
    "health": "your own indicators for `defer_on_health`: `register`, and their answers",
    "integrations.flask": "Flask: `install` runs jobs in an application context, and binds the context of requests",
    "integrations.sqlalchemy": "SQLAlchemy: `install` closes the sessions of jobs, and lets pushes wait for the commit",
    "integrations.starlette": "Starlette and FastAPI: `lifespan`, which boots, and `RequestContext`, an ASGI middleware",
    "job_options": "options of your own that travel with jobs, for your middlewares: `declare_option`",
    "leader": "whether this process leads: `is_leader`, and when it begins and ends: `on_leader`, `on_follower`",
    "limiter": "rate limiters: `concurrent`, `bucket`, `window`, `leaky`, `points`, `unlimited`",
    "lease": "exclusive leases: `Lease`, held by one holder at a time over all processes",
    "lifecycle": "events of a worker process: `on_startup`, `on_quiet`, `on_shutdown`, `on_exit`, `on_heartbeat`, `on_beat`, "
    "`on_leader`, `on_follower`",
    "middleware": "middlewares around pushes and runs: the chains `client` and `server`",
    "pause": "your own strategies for `pause_control`: `register`",
    "sharding": "the Redis of a worker's jobs for application code: `router`, `allow_unrouted`",
    "status": "the state of a tracked job, by its id",
    "tasks": "many jobs of one purpose in SQL: `Task`, their progress, failures and messages; `story` of one job",
    "tasks.http": "tasks over HTTP and JSON: `tasks_app`, a Starlette application, and `TaskScope`",
    "testing": "tests of workers and pushes: `fake`, `inline`, `real`, assertions, checks of all workers",
    "throttling": "your own load signals, which lower concurrency limits: `register`",
    "transactions": "pushes inside of database transactions: `skipping_transaction_check`, `add_source`",
    "types": "types for annotations: `Json`, `Payload`, `Jid` and the words of attributes",
    "workflows": "steps that follow each other, each a batch: `Workflow`, `WorkflowRun`",
}
"""Module within ``framework`` -> its purpose. The names that `framework` itself exports are public too."""


def is_public(inner: str) -> bool:
    """Return whether ``framework.<inner>`` is a public module, or a name inside of one."""
    return any(inner == one or inner.startswith(f"{one}.") for one in PUBLIC_MODULES)
