"""Check forbidden uses: other base classes, internal modules, and direct access to the Redis of the jobs."""

import ast
import re

from framework.devtools.lint.classes import ClassIndex
from framework.devtools.lint.module import Module
from framework.devtools.lint.public_modules import PUBLIC_MODULES, is_public
from framework.devtools.lint.rule import CallSite, LintRule, Match, Matches
from framework.devtools.lint.workspace import FRAMEWORK

_OTHER_SYSTEMS = frozenset({"arq", "celery", "dramatiq", "huey", "procrastinate", "rq", "taskiq"})
_CLIENTS = re.compile(
    r"redis\.(asyncio\.)?(cluster\.|client\.)?(Strict)?(Redis(Cluster)?|ConnectionPool|from_url)(\.from_url)?"
)
_COMMANDS = frozenset(
    {
        "blmove", "blpop", "brpop", "delete", "expire", "hdel", "hget", "hgetall", "hset", "lindex", "linsert", "llen", "lmove",
        "lpop", "lpush", "lrange", "lrem", "lset", "ltrim", "rename", "rpop", "rpoplpush", "rpush", "sadd", "scard", "smembers",
        "srem", "unlink", "zadd", "zcard", "zincrby", "zpopmin", "zrange", "zrangebyscore", "zrem", "zremrangebyscore", "zscan",
    }
)  # fmt: skip
_KEYS = re.compile(r"queue:.*|aw:.*|stat:.*|(queues|schedule|retry|dead|interrupted|processes|paused)")

_ROOT_FUNCTIONS = ("background", "boot")
"""The functions that `framework` itself exports."""


def _other_base(module: Module, classes: ClassIndex) -> Matches:
    for node in module.all_classes:
        one = classes.get(module, node)
        used = classes.worker_around(module, node.body[0]) is not None
        if one.complete and not used and node.name.endswith("Worker") and "perform" in one.methods:
            yield Match(module, node, f"{node.name} has a perform but is no ApplicationWorker")
    for statement, name in module.imported:
        if name.partition(".")[0] in _OTHER_SYSTEMS:
            yield Match(module, statement, f"{name.partition('.')[0]} is another job system")


def _internals(module: Module, _: ClassIndex) -> Matches:
    for statement, name in module.imported:
        steps = name.split(".")
        if steps[0] != FRAMEWORK or len(steps) == 1:
            continue
        inner = ".".join(steps[1:])
        if not is_public(inner) and not steps[1][:1].isupper() and steps[1] not in _ROOT_FUNCTIONS:
            yield Match(module, statement, f"{name} is internal to the framework and may change with any release")


def _job_keys(site: CallSite) -> Matches:
    if site.method in _COMMANDS and site.node.args and not _in_sharding_scope(site):
        key = _literal_prefix(site.node.args[0])
        if key is not None and _KEYS.fullmatch(key):
            yield Match(site.module, site.node, f"{site.method} on the key {key!r}, which holds jobs")


def _in_sharding_scope(site: CallSite) -> bool:
    names = (site.module.dotted(manager.func) for manager in site.context_managers())
    return any(name is not None and name.startswith("framework.sharding.") for name in names)


def _literal_prefix(expression: ast.expr) -> str | None:
    if isinstance(expression, ast.JoinedStr) and expression.values:
        expression = expression.values[0]
    return expression.value if isinstance(expression, ast.Constant) and isinstance(expression.value, str) else None


def _own_client(site: CallSite) -> Matches:
    if site.name is not None and _CLIENTS.fullmatch(site.name):
        words = (node.value for node in ast.walk(site.node) if isinstance(node, ast.Constant))
        if "REDIS_URL" in words:
            yield Match(site.module, site.node, "this call opens its own connection to the Redis of the jobs")


RULES = (
    LintRule(
        code="SEW008",
        name="application-worker",
        summary="A class `...Worker` with a `perform` is no ApplicationWorker, or a file imports another job system's "
        "library.",
        fix="subclass framework.ApplicationWorker",
        why="Such a class is in no registry, routing rule or log. It looks like a worker in a review, but its jobs do "
        "not run, or run in a second system without monitoring.",
        bad="""
class ReindexWorker:  # here
    def perform(self) -> None: ...
""",
        good="""
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    def perform(self) -> None: ...
""",
        check_module=_other_base,
    ),
    LintRule(
        code="SEW010",
        name="job-keys",
        summary="A Redis command uses a key of the job data model outside of a route.",
        fix="use framework.sharding: with router.via(TheWorker) as pool",
        why="Rules distribute jobs over several Redis servers. Another connection reads the wrong server, and a write "
        "that bypasses the scripts may lose jobs.",
        bad="""
from redis import Redis

client = Redis()


def waiting() -> object:
    return client.llen("queue:reindex")  # here
""",
        good="""
from framework.sharding import router
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    def perform(self) -> None: ...


def waiting() -> object:
    with router.via(ReindexWorker) as pool:
        return pool.llen(f"queue:{ReindexWorker.route().queue}")
""",
        check_call=_job_keys,
    ),
    LintRule(
        code="SEW011",
        name="internals",
        summary="A file imports an internal module of the framework.",
        fix="import from framework or its public modules: " + ", ".join(PUBLIC_MODULES),
        why="Internal names and arguments change with any release. A push that bypasses the router goes to the wrong "
        "shard, without limits, checks and log lines (GitLab had this with mails).",
        bad="""
from framework.store.connect import open_client  # here
""",
        good="""
from framework.sharding import router
""",
        check_module=_internals,
    ),
    LintRule(
        code="SEW012",
        name="own-client",
        summary="A file opens its own Redis client on `REDIS_URL`, the Redis of the jobs.",
        fix="use the pool of framework.sharding; for your own data, use another Redis and variable",
        why="A cache must evict, but the Redis of jobs must not: caches and locks there push jobs out of memory. The "
        "framework's limits, circuit breaker and failover do not cover such a connection.",
        bad="""
import os

from redis import Redis

cache = Redis.from_url(os.environ["REDIS_URL"])  # here
""",
        good="""
import os

from redis import Redis

cache = Redis.from_url(os.environ["CACHE_URL"])
""",
        check_call=_own_client,
    ),
)
