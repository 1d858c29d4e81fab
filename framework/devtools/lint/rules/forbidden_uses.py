"""What worker code may reach for: the framework's own base and public names, and no job Redis behind its back."""

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


def _other_base(module: Module, classes: ClassIndex) -> Matches:
    for node in module.all_classes:
        one = classes.get(module, node)
        used = classes.worker_around(module, node.body[0]) is not None
        if one.complete and not used and node.name.endswith("Worker") and "perform" in one.methods:
            yield Match(module, node, f"{node.name} has a perform and is no ApplicationWorker")
    for statement, name in module.imported:
        if name.partition(".")[0] in _OTHER_SYSTEMS:
            yield Match(module, statement, f"{name.partition('.')[0]} is another job system")


def _internals(module: Module, _: ClassIndex) -> Matches:
    for statement, name in module.imported:
        steps = name.split(".")
        if steps[0] != FRAMEWORK or len(steps) == 1:
            continue
        inner = ".".join(steps[1:])
        if not is_public(inner) and not steps[1][:1].isupper() and steps[1] != "boot":
            yield Match(module, statement, f"{name} is the framework's own and may change with any release")


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
            yield Match(site.module, site.node, "this opens a connection of its own to the Redis of the jobs")


RULES = (
    LintRule(
        code="SEW008",
        name="application-worker",
        summary="A class `...Worker` with a `perform` that is no ApplicationWorker, or another job system's library.",
        fix="subclass framework.ApplicationWorker",
        why="What is no ApplicationWorker is in no registry, no routing rule and no log. It looks like a worker in a review, and its "
        "jobs do not run, or run in a second system without monitoring.",
        bad='''
class ReindexWorker:  # here
    """Write the search index of a project."""

    def perform(self, project_id: int) -> None: ...
''',
        good='''
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    """Write the search index of a project."""

    def perform(self, project_id: int) -> None: ...
''',
        check_module=_other_base,
    ),
    LintRule(
        code="SEW010",
        name="job-keys",
        summary="A Redis command on a key of the job data model, outside of a route.",
        fix="ask framework.sharding: with router.via(TheWorker) as pool",
        why="Queues, schedules and retries lie on several Redis servers, and rules say on which. A command on whatever connection is "
        "at hand reads the wrong one, and a write past the scripts is how jobs get lost.",
        bad="""
from redis import Redis

client = Redis()


def waiting() -> object:
    return client.llen("queue:reindex")  # here
""",
        good='''
from framework.sharding import router
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    """Write the search index of a project."""

    def perform(self, project_id: int) -> None: ...


def waiting() -> object:
    with router.via(ReindexWorker) as pool:
        return pool.llen(f"queue:{ReindexWorker.route().queue}")
''',
        check_call=_job_keys,
    ),
    LintRule(
        code="SEW011",
        name="internals",
        summary="An import from inside of the framework.",
        fix="import from framework, or from its modules for everybody: " + ", ".join(PUBLIC_MODULES),
        why="Inside, names and arguments change with any release, and what they do is only right in their place: a push past the "
        "router goes to the wrong shard, without limits, checks and log lines (GitLab had that with mails).",
        bad="""
from framework.store.connect import open_client  # here

print(open_client)
""",
        good="""
from framework.sharding import router

print(router)
""",
        check_module=_internals,
    ),
    LintRule(
        code="SEW012",
        name="own-client",
        summary="A Redis client of its own on `REDIS_URL`, which is where jobs live.",
        fix="ask framework.sharding for the pool; for your own data, take a Redis and a variable of your own",
        why="Caches and locks beside jobs push jobs out of memory: their Redis must not evict, and a cache must. And a connection "
        "that the framework does not know is in no limit, no circuit and no failover.",
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
