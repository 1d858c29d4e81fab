"""Check the rights of each role: Redis accepts the printed rules, errors name missing rights, and a lost right loses no job."""

import re
import time
from contextlib import suppress

import pytest
from redis.exceptions import NoPermissionError

from framework.cli.store import acl_line
from framework.features.pause.store import HOLD_PAUSED, RELEASE_PAUSED
from framework.store import rights, script
from framework.store.connect import Endpoint, open_client
from framework.store.rights import MissingRights, missing_worker_rights
from framework.wire import keys
from tests.harness import ROOT
from tests.lua import SCRIPTS
from tests.tables import each_row

PASSWORD = "of-the-user"
RIGHTS = [right for right in (*rights.WORKER.commands, *rights.WORKER.optional) if right not in ("exec", "watch")]
"""EXEC is not asked about: asked, it would carry out the other questions. WATCH is refused in a transaction in any case."""
JOB = b'{"class":"A","args":[],"jid":"a","queue":"q"}'
DUE = b'{"class":"A","args":[],"jid":"b","queue":"q"}'
ME, DEAD = "host:1:00000000000a", "host:2:00000000000b"
WORKING, QUEUE, LIMIT = keys.working(ME), keys.queue("q"), keys.limit("A")
TICKET = b'["q","w"]\n'
SLOTS = f'{{"slots":[["{LIMIT}","{ME} a"]]}}'


@pytest.fixture
def as_user(each_redis, each_redis_url):
    """Return a client with these rights."""
    opened = []

    def client(*rules):
        each_redis.execute_command("ACL", "SETUSER", "tested", "reset", *rules, f">{PASSWORD}")
        options = (("username", "tested"), ("password", PASSWORD))
        opened.append(open_client(Endpoint(each_redis_url, options=options), name="tested"))
        return opened[-1]

    yield client
    for one in opened:
        one.close()
    each_redis.execute_command("ACL", "DELUSER", "tested")


@pytest.mark.parametrize("name", rights.ROLES)
def test_acl_printed_line_is_taken_by_the_server(each_redis, name):
    role = rights.ROLES[name]
    each_redis.execute_command(*acl_line(role, "printed").split())
    found = each_redis.acl_getuser("printed")
    assert set(found["keys"]) == {f"~{pattern}" for pattern in (*role.keys, *role.optional_keys)}
    assert "+@all" not in found["commands"]
    # It may not log in before an operator has given it a password.
    assert (found["passwords"], found["channels"]) == (
        [],
        [],
    )
    each_redis.execute_command("ACL", "DELUSER", "printed")


def test_acl_printed_line_keeps_the_password(each_redis, as_user):
    as_user("on")
    each_redis.execute_command(*acl_line(rights.WORKER, "tested").split())
    assert each_redis.acl_getuser("tested")["passwords"]


def test_refused_with_all_rights_finds_nothing(each_redis, as_user):
    assert missing_worker_rights(as_user(*rights.WORKER.rules)) == MissingRights()
    assert missing_worker_rights(each_redis) == MissingRights()  # with every right
    assert not each_redis.keys("*"), "the question has written something"


@pytest.mark.campaign
@pytest.mark.refused("tested *")
@each_row("right", RIGHTS)
def test_refused_without_one_command_names_it(as_user, right):
    refused = missing_worker_rights(as_user(*(rule for rule in rights.WORKER.rules if rule != f"+{right}")))
    wanted = {"optional": (right,)} if right in rights.WORKER.optional else {"commands": (right,)}
    assert refused == MissingRights(**wanted)


@pytest.mark.refused("tested *")
@each_row("pattern", rights.WORKER.keys)
def test_refused_without_one_key_names_it(as_user, pattern):
    refused = missing_worker_rights(as_user(*(rule for rule in rights.WORKER.rules if rule != f"~{pattern}")))
    assert refused.keys == (pattern,)
    assert f"~{pattern}" in refused.rules("")
    assert f"~{{main}}:{pattern}" in refused.rules("{main}:")


@pytest.mark.refused("tested *")
def test_key_patterns_match_framework_keys_only(each_redis, as_user):
    client = as_user(*rights.WORKER.rules)
    for key in (
        ME,
        *keys.work(ME),
        keys.signals(ME),
        WORKING,
        keys.transferred("x"),
        keys.STAT_FAILED,
        keys.INTERRUPTED,
    ):
        client.exists(key)
    at = time.gmtime(0)
    for key in (*(key for key, _ in keys.metrics(7, at)), keys.histogram(7, "A", at)):
        client.exists(key)
    for key in (*(key for key, _ in keys.metrics(8, at)), keys.histogram(8, "A", at), keys.iteration("x")):
        client.exists(key)
    for key in ("session:1:abc", "cache", "user:1:settingsview", "queued", "item-x", "jobs|1", "a-1970-01-01"):
        with pytest.raises(NoPermissionError):
            client.exists(key)
    required = as_user(*(rule for rule in rights.WORKER.rules if rule[1:] not in rights.WORKER.optional_keys))
    for key in (keys.iteration("x"), keys.histogram(7, "A", at), keys.histogram(8, "A", at)):
        with pytest.raises(NoPermissionError):
            required.exists(key)


def test_rights_find_every_command_of_a_script():
    """The extraction finds each quoted word in capitals after a call."""
    assert rights.commands_in(script.ENQUEUE_DUE) >= {"lpush", "zadd", "zrem", "time", "zremrangebyrank"}
    assert {"lpush", "rpush"} <= rights.commands_in(script.RELEASE_WAITING)  # one call, two commands
    assert "zpopmin" not in rights.commands_in(script.PUSH_UP_TO)  # only the called functions of its parts count
    unread = re.compile(rb"redis\.p?call\((?!\s*')(?!\s*\w+ and ')(?!unpack\(claim\.mark\))")
    for name, one in SCRIPTS.items():
        assert not unread.search(one.source), f"{name}: a command that is not written where it is called"


def _hold(redis):
    redis.lpush(WORKING, JOB)


def _wait(redis):
    """A job holds the only slot, and another waits for it."""
    _hold(redis)
    redis.hset(LIMIT, mapping={"limit": 1, "share": 0})
    redis.zadd(f"{LIMIT}:running", {f"{ME} a": 4e9})
    redis.zadd(f"{LIMIT}:waiting:", {TICKET + DUE: 1})
    redis.zadd(f"{LIMIT}:turns", {"": 1})


MOVES = {
    "fetch": (
        lambda redis: (redis.set(keys.lease(ME), 1), redis.lpush(QUEUE, JOB, DUE)),
        lambda client: script.FETCH(client, [keys.lease(ME), WORKING, QUEUE], [15_000, 9, 0, 9]),
    ),
    "postpone": (_hold, lambda client: script.SCHEDULE(client, [WORKING, keys.RETRY], [JOB, JOB, 1, ""])),
    "bury": (_hold, lambda client: script.KILL(client, [WORKING, keys.DEAD], [9, 9, 0, JOB, JOB, "", ""])),
    "park": (
        _hold,
        lambda client: HOLD_PAUSED(
            client,
            [WORKING, keys.paused_jobs("A"), keys.PAUSED_CLASSES, keys.FLAGS, keys.pause_strategy("A")],
            [JOB, "q", "A", "pause_A", "", "never", 60_000, ""],
        ),
    ),
    "acquire": (
        lambda redis: (_hold(redis), redis.hset(LIMIT, "limit", -1)),
        lambda client: script.TAKE_SLOT(client, [WORKING, LIMIT], [JOB, "m", "a", "q", -1, 180, "", "", 0, "wait", ""]),
    ),
    "requeue": (_hold, lambda client: script.REQUEUE(client, [WORKING, keys.QUEUES, QUEUE], [1, JOB, JOB, "q"])),
    "let go": (
        _wait,
        lambda client: script.SCHEDULE(client, [WORKING, keys.RETRY], [JOB, JOB, 1, SLOTS]),
    ),
    "reclaim": (
        lambda redis: redis.lpush(keys.working(DEAD), JOB),
        lambda client: script.RECLAIM(
            client,
            [keys.lease(DEAD), keys.working(DEAD), QUEUE, keys.QUEUES],
            [JOB, JOB, 4e9, "q", 9, 9, "", 0, ""],
        ),
    ),
    "restore": (
        lambda redis: redis.lpush(keys.working(DEAD), JOB),
        lambda client: script.RESTORE(
            client, [keys.lease(DEAD), keys.working(DEAD), QUEUE, keys.QUEUES], [4e9, 9, 9999, "q"]
        ),
    ),
    "unpark": (
        lambda redis: redis.zadd(keys.paused_jobs("A"), {b'["q"]\n' + JOB: 1}),
        lambda client: RELEASE_PAUSED(
            client,
            [keys.paused_jobs("A"), keys.PAUSED_CLASSES, keys.QUEUES, keys.FLAGS, keys.pause_strategy("A")],
            ["A", "pause_A", "", "", 9, 9999, 0],
        ),
    ),
    **{
        f"promote: {word}": (
            lambda redis: redis.zadd(keys.RETRY, {JOB: 1}),
            lambda client, word=word: script.ENQUEUE_DUE(
                client,
                [keys.RETRY, keys.QUEUES, keys.DEAD, QUEUE],
                [1, 9, 9, 60, JOB, word, "5" if word == "delay" else JOB, "q"],
            ),
        )
        for word in ("queue", "dead", "mark", "delay")
    },
    "replace": (
        lambda redis: redis.zadd(keys.RETRY, {JOB: 1}),
        lambda client: script.REPLACE(client, [keys.RETRY], [1, JOB, JOB]),
    ),
    "migrate": (
        lambda redis: (redis.set(keys.lease(ME), 1), redis.lpush(WORKING, JOB)),
        lambda client: script.MIGRATE(
            client, [keys.lease(ME), WORKING, keys.QUEUES, QUEUE], [15_000, 0, 0, 1, 1, "q", JOB, "", 1]
        ),
    ),
}
READS = {"list": lambda redis, key: redis.lrange(key, 0, -1), "zset": lambda redis, key: redis.zrange(key, 0, -1)}


def stored(redis):
    """Return every member of the lists and sorted sets."""
    names = [key for key in redis.keys("*") if redis.type(key).decode() in READS]
    return b"".join(part for key in names for part in READS[redis.type(key).decode()](redis, key))


def used_by(redis, prepare, act):
    """Return the commands that a move calls when it has all rights; without any other right it does the same."""
    prepare(redis)
    redis.config_resetstat()
    act(redis)
    return {name.removeprefix("cmdstat_").partition("|")[0] for name in redis.info("commandstats")} - {"info", "config"}


@pytest.mark.refused("tested *")
@pytest.mark.parametrize("move", MOVES)
def test_move_without_one_right_loses_no_job(each_redis, as_user, move):
    """A right is removed while processes run: Lua does not roll back, so a script must undo its own writes."""
    prepare, act = MOVES[move]
    role = rights.OPERATOR if move in ("migrate", "replace") else rights.WORKER
    done, wanted = 0, None
    used = used_by(each_redis, prepare, act)
    for right in ("", *(right for right in role.commands if right.partition("|")[0] in used)):
        each_redis.flushall()
        prepare(each_redis)
        wanted = [jid for jid in (b'"jid":"a"', b'"jid":"b"') if jid in stored(each_redis)]
        client = as_user(*(rule for rule in role.rules if rule != f"+{right}"))
        with suppress(NoPermissionError):
            act(client)
            done += 1
        left = stored(each_redis)
        assert all(jid in left for jid in wanted), f"{move} without {right or 'nothing'}"
    assert wanted
    assert done, "the move was never made"


def test_guide_shows_the_printed_rule_of_each_role():
    page = (ROOT / "docs" / "operate" / "redis_rights.md").read_text()
    for role in rights.ROLES.values():
        lines = (("keys", role.keys), ("commands", role.commands), ("optional", role.optional))
        more = [("optional keys", role.optional_keys)] if role.optional_keys else []
        block = "\n".join(f"{name}: {' '.join(values)}" for name, values in (*lines, *more))
        section = page.partition(f"### {role.name}\n")[2].partition("\n### ")[0]
        assert f"```text rights={role.name}\n{block}\n```\n" in section, block
