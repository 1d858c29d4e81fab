"""Define faults of the network to Redis, in the proxy in front of it."""

from tests.chaos.rounds.faults import NETWORK, Fault, Injection, Steps, fault, lasting
from tests.chaos.rounds.round_shard import RoundShard
from tests.servers.proxy import Proxy

SLOW_S, DRIP_S, NARROW_BYTES_PER_S = 0.2, 2.0, 50_000
_ANY_SCRIPT, _FETCH_OR_BLOCKED, _PUSH = rb"EVALSHA", rb"EVALSHA|BLMOVE", rb"LPUSH"


def _proxy(round_shard: RoundShard) -> Proxy:
    found = round_shard.store.proxy
    assert found is not None, "this round has no proxy"  # noqa: S101
    return found


def _then_healed(round_shard: RoundShard, seconds: float) -> Steps:
    try:
        yield from lasting(seconds)
    finally:
        _proxy(round_shard).heal()


@fault("reset", NETWORK)
def reset(round_shard: RoundShard, _: Injection) -> Steps:
    """Reset every connection."""
    _proxy(round_shard).reset()
    yield from ()


@fault("black hole", NETWORK)
def black_hole(round_shard: RoundShard, _: Injection) -> Steps:
    """Drop every byte and close no connection; connections open then stay silent for ever."""
    _proxy(round_shard).swallow()
    yield from _then_healed(round_shard, round_shard.rng.uniform(1, 8))


@fault("lost replies", NETWORK)
def lost_replies(round_shard: RoundShard, _: Injection) -> Steps:
    """Lose a reply with its connection, of some n-th scripts, a blocking call or a push; Redis has run the command."""
    pattern = round_shard.rng.choice((_ANY_SCRIPT, _FETCH_OR_BLOCKED, _PUSH))
    numbers = {round_shard.rng.randint(1, 40) for _ in range(5)}
    _proxy(round_shard).lose_replies(pattern, numbers)
    yield from _then_healed(round_shard, 1.0)


@fault("hanging reply", NETWORK)
def hanging_reply(round_shard: RoundShard, _: Injection) -> Steps:
    """Lose replies, but keep the connection open and silent."""
    _proxy(round_shard).lose_replies(_ANY_SCRIPT, {round_shard.rng.randint(1, 40)}, hang=True)
    yield from _then_healed(round_shard, 1.0)


@fault("cut reply", NETWORK)
def cut_reply(round_shard: RoundShard, _: Injection) -> Steps:
    """Send some bytes of the next reply, then reset the connection."""
    _proxy(round_shard).cut_after(round_shard.rng.randint(0, 60))
    yield from _then_healed(round_shard, 0.5)


@fault("slow", NETWORK)
def slow(round_shard: RoundShard, _: Injection) -> Steps:
    """Delay every reply by 200 ms."""
    _proxy(round_shard).delay_s = SLOW_S
    yield from _then_healed(round_shard, round_shard.rng.uniform(1, 3))


@fault("narrow", NETWORK)
def narrow(round_shard: RoundShard, _: Injection) -> Steps:
    """Limit every connection to 50 KB per second each way."""
    _proxy(round_shard).bytes_per_s = NARROW_BYTES_PER_S
    yield from _then_healed(round_shard, round_shard.rng.uniform(1, 3))


@fault("drip", NETWORK)
def drip(round_shard: RoundShard, _: Injection) -> Steps:
    """Send each byte of each reply after 2 s: no read is late, and no call completes."""
    _proxy(round_shard).drip_s = DRIP_S
    yield from _then_healed(round_shard, round_shard.rng.uniform(1, 8))


NETWORK_FAULTS: tuple[Fault, ...] = (reset, black_hole, lost_replies, hanging_reply, cut_reply, slow, narrow, drip)
