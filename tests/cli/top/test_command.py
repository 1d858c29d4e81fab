"""Test the actions of the live view: what became of them, in one line."""

import queue as queues
from dataclasses import replace

from framework import admin
from framework.admin.rates import ShardRates
from framework.cli.top.command import carry_out, carry_out_later
from framework.cli.top.state import Intent, RowOrder, make_table
from framework.wire import keys
from tests.cli.top.facts_of_a_shop import facts, process
from tests.harness import encoded, enqueue


def intent(verb, table, shown):
    return Intent(verb, make_table(table, [(shown, ShardRates())], "", RowOrder()).rows[0])


def test_action_on_a_thing_that_is_gone_says_so(shard, redis):
    assert carry_out(intent("quiet", "processes", facts(processes=[process()]))) == (
        "quiet failed: the process host:7:aabbccddeeff of main has ended: there is nothing to quiet"
    )
    embedded = replace(process(), embedded=True)
    assert "takes no signals" in carry_out(intent("quiet", "processes", facts(processes=[embedded])))
    redis.zadd(keys.DEAD, {encoded("Mail", jid="d1"): 1_700_000_000})
    shown = facts(entries=list(admin.dead()))
    assert carry_out(intent("delete", "dead", shown)) == "main: d1 is deleted"
    assert carry_out(intent("retry", "dead", shown)) == "main: d1 is not there any more: nothing was changed"


def test_action_in_a_thread_is_refused_in_read_only(shard, redis):
    enqueue(redis, "Mail", queue="mailers")
    shown, results = facts(*admin.queues()), queues.Queue()
    with admin.read_only():
        carry_out_later(intent("pause", "queues", shown), results.put)
        assert results.get(timeout=30).startswith("pause failed: Queue.pause() is refused")
    assert not redis.exists(keys.PAUSED)
