"""Test the checks of the round of calls: each way to break a promise is found."""

import gzip
from collections import Counter
from random import Random

from framework.errors import JobDiscardedError, JobFailedError, ResultTimeoutError
from framework.features.profiling.store import MAX_PROFILES, JobProfile, keep_profile
from tests.chaos.rounds.call_load import Answer, CallLoad
from tests.chaos.rounds.effects import BEGUN, ENDED, Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.jobs import CALLED, PROFILED, way_of
from tests.chaos.rounds.producer import AcceptedPushes
from tests.proofs.leftover_keys import leaks

BEGAN = 1_000.0
FAILS, DISCARDS, RETURNS = 0, 2, 8
"""Serials of each way."""


def ran(serial, begun, ended=None, pid=1):
    effects = [Effect(BEGUN, serial, pid, BEGAN + begun)]
    return effects + ([Effect(ENDED, serial, pid, BEGAN + ended)] if ended is not None else [])


def value(serial, at, pid=1):
    return Answer(BEGAN + at, {"serial": serial, "pid": pid})


def test_account_of_calls_finds_each_broken_promise(redis):
    load = CallLoad(10.0, Random(1))
    assert [way_of(serial) for serial in (FAILS, DISCARDS, RETURNS)] == ["fails", "discards", "returns"]
    all_ran = [ran(CALLED + serial, 1, 2) for serial in range(RETURNS)]
    good = {
        serial: Answer(BEGAN + 3, error=JobFailedError("C", "j", "deleted", "", "LookupError"))
        if way_of(serial) == "fails"
        else Answer(BEGAN + 3, error=JobDiscardedError("C", "j", "discarded", ""))
        if way_of(serial) == "discards"
        else value(serial, 3)
        for serial in range(RETURNS)
    }

    def found(*jobs, answer=None, injections=(), doubts=0):
        count = RETURNS + 1
        load._times = {
            CALLED: AcceptedPushes([BEGAN] * count, [BEGAN] * count),
            PROFILED: AcceptedPushes([BEGAN], [BEGAN]),
        }
        load._doubts = {CALLED: Counter({RETURNS: doubts}), PROFILED: Counter()}
        load._answers = {**good, **({} if answer is None else {RETURNS: answer})}
        return load.found([effect for job in (*all_ran, *jobs) for effect in job], injections, redis)

    one, profiled = ran(CALLED + RETURNS, 1, 2), ran(PROFILED, 1, 2)
    seen = found(one, profiled, answer=value(RETURNS, 3))
    assert not any((seen.unanswered, seen.wrong, seen.ran_again, seen.called.lost, seen.profiled.lost, seen.bad_pages))
    assert seen.ends == {"value": 5, "JobFailedError": 2, "JobDiscardedError": 2}
    # No end, the end of another way, the value of another run or job.
    assert found(one).unanswered == ["8"]
    late = Answer(BEGAN + 3, error=ResultTimeoutError("C", "j", 1.0))
    assert (found(one, answer=late).unanswered, found(one, answer=late).wrong) == (["8"], [])
    assert len(found(one, answer=good[FAILS]).wrong) == len(found(one, answer=value(7, 3)).wrong) == 1
    killed = [Injection("kill", 1, BEGAN + 2.1)]
    twice = (one, ran(CALLED + RETURNS, 3, 4, pid=2))
    assert found(*twice, answer=value(RETURNS, 5, pid=2), injections=killed).wrong == []
    assert len(found(*twice, answer=value(RETURNS, 5, pid=1), injections=killed).wrong) == 1
    # A run after the answer, unless the job may have been pushed twice; and one without a cause.
    assert found(*twice, answer=value(RETURNS, 2.5), injections=killed).ran_again == ["8 at 1003.000"]
    assert found(*twice, answer=value(RETURNS, 2.5), injections=killed, doubts=1).ran_again == []
    assert found(*twice, answer=value(RETURNS, 5, pid=2)).called.unexplained == [RETURNS]
    # Jobs that are lost, and pages that are none of theirs; keys that stay.
    assert found(ran(CALLED + RETURNS, 1), ran(PROFILED, 1)).profiled.lost == [0]
    keep_profile(redis, JobProfile("other", "ProfiledWorker", 1.0, "", 3, b"abc"))
    assert found(one).bad_pages == ["other"]
    load._profiled_jids.update(("other", "mine"))
    page = gzip.compress(b"<title>ProfiledWorker mine</title>")
    keep_profile(redis, JobProfile("mine", "ProfiledWorker", 1.0, "", len(page), page))
    assert found(one).bad_pages == ["other"], "its page cannot be read"
    for number in range(MAX_PROFILES):
        redis.zadd("aw:profiles", {f"n{number}": number})
    assert leaks(redis) == []
    redis.set("aw:result:left", "{}")
    redis.persist("aw:profile:other")
    assert [text.split()[0] for text in leaks(redis)] == ["aw:profile:other", "aw:result:left"]
