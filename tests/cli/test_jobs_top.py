"""Test jobs top: tables of numbers and of estimates, JSON, and the exit codes."""

from framework.admin import groups
from framework.wire import keys
from tests.harness import encoded


def fill(redis, count=10):
    for at in range(count):
        name = "Report" if at % 5 == 0 else "Mail"
        redis.zadd(
            keys.DEAD, {encoded(name, jid=f"j{at}", queue="mail", error_class="KeyError", error_message=f"a{at}"): at}
        )


def test_top_shows_numbers_shares_and_an_example(jobs, redis):
    fill(redis)
    assert jobs("top", "dead").splitlines() == [
        "CLASS   JOBS  SHARE   EXAMPLE",
        "Mail    8     80.0 %  j1",
        "Report  2     20.0 %  j0",
    ]
    assert jobs("top", "dead", "--limit", "1").splitlines()[1:] == [
        "Mail   8     80.0 %  j1",
        "and 1 further group: --limit shows more",
    ]
    assert (
        jobs("top", "dead", "--by", "error", "--not-class", "Report").splitlines()[1]
        == "KeyError: aN  8     80.0 %  j1"
    )
    found = jobs("top", "dead", "--by", "queue", "--json")
    assert found["groups"] == [{"name": "mail", "jobs": 10, "low": 10, "high": 10, "example": "j0"}]
    assert (found["total"], found["examined"], found["is_estimate"], found["unanswered"]) == (10, 10, False, [])


def test_top_says_what_an_estimate_stands_on(jobs, redis, monkeypatch):
    monkeypatch.setattr(groups, "SAMPLED_ABOVE", 1_000)
    fill(redis, 10_000)
    headings, first, _, note = jobs("top", "dead").splitlines()
    assert headings.split() == ["CLASS", "JOBS", "BETWEEN", "SHARE", "EXAMPLE"]
    name, jobs_, low, _, high = first.split()[:5]
    assert (name, jobs_[0]) == ("Mail", "~")
    # Five standard errors wide around: Redis draws the jobs.
    assert int(low.replace(",", "")) - 200 < 8_000 < int(high.replace(",", "")) + 200
    assert note.startswith("Estimated from 5,000 of 10,000 jobs; a group that was not seen has at most 8 jobs.")
    assert "~" not in jobs("top", "dead", "--exact")


def test_top_of_nothing_or_of_an_unknown_queue(jobs, redis):
    assert jobs("top", "held") == "No job is in held.\n"
    fill(redis)
    assert jobs("top", "dead", "--class", "None") == "No job in dead matches.\n"
    redis.sadd(keys.QUEUES, "mail")
    assert "(did you mean 'mail'?)" in jobs("top", "queue:mial", status=1)
    assert "(did you mean 'class'?)" in jobs("top", "dead", "--by", "clas", status=2)
