"""Move jobs between servers of other versions, and between servers whose clocks differ."""

import shutil
import subprocess

import pytest

from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import read_flags, set_flag
from framework.features.moves import class_controls
from framework.store.connect import server_time
from framework.wire import keys
from tests.features.moves.test_mover import (
    MOVED,
    QUEUE,
    begin,
    check_moved,
    fill,
    job,
    jobs_of,
    moves_away,
    opened_moves,
    run,
    small_pages,
    waiting,
)

__all__ = ["small_pages"]

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int gettimeofday(struct timeval *now, void *zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int done = real(now, zone);
    now->tv_sec += SKEW;
    return done;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += SKEW;
    return done;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
"""A library that sets the clock of the server that loads it."""


def there_and_back(url, client, other_url, other):
    """Move jobs of all places with a lock, and move them back."""
    jobs = fill(client)
    lock = keys.lock("own")
    locked = job(500, idempotency_key=lock)
    client.lpush(QUEUE, locked)
    client.hset(lock, mapping={"v": "1", "jid": f"{500:024x}", "class": MOVED, "since": "1.5"})
    client.pexpire(lock, 500_000)
    moves = opened_moves(url, other_url)
    run(moves, begin(moves))
    check_moved(client, other, [*jobs, locked])
    assert 400_000 < other.pttl(lock) <= 500_000
    back = moves.reversed(moves.records[0])
    moves.publish(back)
    run(moves, back)
    assert sorted(waiting(client)) == sorted([*jobs, locked])
    assert client.zcard(keys.RETRY) == len(jobs_of(12))
    assert client.hget(lock, "jid") == f"{500:024x}".encode()
    assert not other.exists(QUEUE, keys.RETRY)
    assert not any(map(moves_away, other.zrange(keys.SCHEDULE, 0, -1)))


def test_move_between_servers_of_other_versions(redis, redis_url, make_server, small_pages):
    server = make_server("redis-server")
    with server.open() as other:
        assert redis.info("server").get("server_name") != other.info("server").get("server_name")
        there_and_back(redis_url, redis, server.url, other)
        redis.flushall()
        other.flushall()
        there_and_back(server.url, other, redis_url, redis)


@pytest.mark.parametrize("seconds", [-7_200, 7_200])
def test_move_between_clocks_that_differ(redis, redis_url, make_server, small_pages, tmp_path, monkeypatch, seconds):
    """Times of jobs and flags are kept as they are; what a mover waits for is measured by one clock."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler for the library that sets the clock")
    library = tmp_path / "clock.so"
    (tmp_path / "clock.c").write_text(CLOCK)
    command = [
        compiler,
        "-shared",
        "-fPIC",
        f"-DSKEW=({seconds})",
        "-o",
        str(library),
        str(tmp_path / "clock.c"),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    monkeypatch.setattr(class_controls, "FOLLOWED_S", 0.0)
    with monkeypatch.context() as patched:
        patched.setenv("LD_PRELOAD", str(library))
        server = make_server("redis-server")
    with server.open() as other:
        assert abs(server_time(other) - server_time(redis) - seconds) < 60
        set_flag(redis, Flag(pause_flag(MOVED), 0, "slow"), 100_000)
        there_and_back(redis_url, redis, server.url, other)
        assert read_flags(other)[pause_flag(MOVED)].expires_at == read_flags(redis)[pause_flag(MOVED)].expires_at
        redis.flushall()
        other.flushall()
        there_and_back(server.url, other, redis_url, redis)
