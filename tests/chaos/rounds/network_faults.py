"""Define faults of the network to Redis, in the proxy in front of it."""

from tests.chaos.rounds.faults import NETWORK, Fault, Injection, Steps, fault, lasting
from tests.chaos.rounds.side import Side
from tests.servers.proxy import Proxy

SLOW_S, DRIP_S, NARROW_BYTES_PER_S = 0.2, 2.0, 50_000
_ANY_SCRIPT, _FETCH_OR_PARKED, _PUSH = rb"EVALSHA", rb"EVALSHA|BLMOVE", rb"LPUSH"


def _proxy(side: Side) -> Proxy:
    found = side.store.proxy
    assert found is not None, "this round has no proxy"  # noqa: S101
    return found


def _then_healed(side: Side, seconds: float) -> Steps:
    try:
        yield from lasting(seconds)
    finally:
        _proxy(side).heal()


@fault("reset", NETWORK)
def reset(side: Side, _: Injection) -> Steps:
    """Reset every connection."""
    _proxy(side).reset()
    yield from ()


@fault("black hole", NETWORK)
def black_hole(side: Side, _: Injection) -> Steps:
    """Drop every byte and close no connection; connections open then stay silent for ever."""
    _proxy(side).swallow()
    yield from _then_healed(side, side.rng.uniform(1, 8))


@fault("lost replies", NETWORK)
def lost_replies(side: Side, _: Injection) -> Steps:
    """Lose a reply with its connection, of some n-th scripts, a blocking call or a push; Redis has run the command."""
    pattern = side.rng.choice((_ANY_SCRIPT, _FETCH_OR_PARKED, _PUSH))
    numbers = {side.rng.randint(1, 40) for _ in range(5)}
    _proxy(side).lose_replies(pattern, numbers)
    yield from _then_healed(side, 1.0)


@fault("hanging reply", NETWORK)
def hanging_reply(side: Side, _: Injection) -> Steps:
    """Lose replies, but keep the connection open and silent."""
    _proxy(side).lose_replies(_ANY_SCRIPT, {side.rng.randint(1, 40)}, hang=True)
    yield from _then_healed(side, 1.0)


@fault("cut reply", NETWORK)
def cut_reply(side: Side, _: Injection) -> Steps:
    """Send some bytes of the next reply, then reset the connection."""
    _proxy(side).cut_after(side.rng.randint(0, 60))
    yield from _then_healed(side, 0.5)


@fault("slow", NETWORK)
def slow(side: Side, _: Injection) -> Steps:
    """Delay every reply by 200 ms."""
    _proxy(side).delay_s = SLOW_S
    yield from _then_healed(side, side.rng.uniform(1, 3))


@fault("narrow", NETWORK)
def narrow(side: Side, _: Injection) -> Steps:
    """Limit every connection to 50 KB per second each way."""
    _proxy(side).bytes_per_s = NARROW_BYTES_PER_S
    yield from _then_healed(side, side.rng.uniform(1, 3))


@fault("drip", NETWORK)
def drip(side: Side, _: Injection) -> Steps:
    """Send each byte of each reply after 2 s: no read is late, and no call completes."""
    _proxy(side).drip_s = DRIP_S
    yield from _then_healed(side, side.rng.uniform(1, 8))


NETWORK_FAULTS: tuple[Fault, ...] = (reset, black_hole, lost_replies, hanging_reply, cut_reply, slow, narrow, drip)
