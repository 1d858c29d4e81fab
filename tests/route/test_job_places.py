"""Choose the shards of the jobs of one class by their keys."""

from framework.declare.spread import spread
from framework.route.job_places import JobPlaces
from framework.route.route_moves import MovableJob, RouteMove, RouteMoves

JOB = MovableJob("HotWorker", "hot", "")
KEYS = [f"{number:024x}" for number in range(1_000)]
SPREAD = spread("a", "b")


def places(*moves, shard="a", several=None):
    return JobPlaces(RouteMoves(moves), JOB, shard, several)


def move(source, target, percent=100, name="HotWorker"):
    return RouteMove(f"{source}{target}", "class", name, source, target, percent)


def test_class_has_one_shard_without_a_spread_and_a_part():
    assert places().shards == ("a",)
    assert places(move("a", "c"), move("a", "d", 10, "Other")).shards == ("c",)


def test_moved_part_of_a_class_is_on_its_target():
    half = places(move("a", "c", 50))
    assert sorted(half.shards) == ["a", "c"]
    assert {key for key in KEYS if half.shard_of(key) == "c"} == {
        key for key in KEYS if move("a", "c", 50).covers(JOB._replace(key=key))
    }


def test_spread_follows_moves_of_its_shards():
    assert places(several=SPREAD).shards == ("a", "b")
    moved = places(move("b", "c"), several=SPREAD)
    assert moved.shards == ("a", "c")
    assert {(SPREAD.shard_of(key), moved.shard_of(key)) for key in KEYS} == {("a", "a"), ("b", "c")}
    together = places(move("b", "a"), several=SPREAD)
    assert together.shards == ("a",)
