"""Decide by moves to which shard a job goes."""

import pytest

from framework.route.route_moves import KnownMoves, MovableJob, MoveEpoch, RouteMove, RouteMoves

JOB = MovableJob("ReportWorker", "reports:heavy~acme", "reports", "jid")


@pytest.mark.parametrize(
    ("kind", "name", "covered"),
    [
        ("class", "ReportWorker", True),
        ("class", "Report", False),
        ("queue", "reports:heavy", True),
        ("queue", "reports", False),
        ("namespace", "reports", True),
        ("namespace", "report", False),
        ("shard", "a", True),
    ],
)
def test_move_covers_jobs_of_its_kind(kind, name, covered):
    move = RouteMove("1", kind, name, "a", "b")
    assert move.covers(JOB) is covered
    assert move.covers(JOB._replace(namespace=None)) is covered
    assert RouteMoves([move]).shard_of(JOB, "a") == ("b" if covered else "a")
    assert RouteMoves([move]).shard_of(JOB, "c") == "c"


def test_move_of_a_part_is_decided_by_the_id():
    jobs = [JOB._replace(key=f"{number:024x}") for number in range(2_000)]
    taken = {
        part: {job for job in jobs if RouteMove("1", "shard", "a", "a", "b", part).covers(job)} for part in (10, 50)
    }
    assert taken[10] < taken[50]
    assert [len(taken[part]) // 100 for part in (10, 50)] == [2, 10] or 150 < len(taken[10]) < 250 < 900 < len(
        taken[50]
    ) < 1_100
    assert not RouteMove("1", "shard", "a", "a", "b", 99).covers(JOB._replace(key=None))


def test_moves_apply_in_the_order_of_their_epochs():
    first, second = RouteMove("1", "shard", "a", "a", "b"), RouteMove("2", "queue", "reports:heavy", "b", "c")
    known = KnownMoves()
    assert known.note([MoveEpoch("2", 2, second), MoveEpoch("1", 1, first)])
    assert known.moves.last_move(JOB, "a") == ("c", first)
    assert known.moves.last_move(JOB, "b") == ("c", second)
    assert not known.note([MoveEpoch("1", 1, first), MoveEpoch("2", 1, None)])
    # The move back has a later epoch, so it follows the move that is still in force.
    assert known.note([MoveEpoch("1", 3, first._replace(source="b", target="a"))])
    assert [known.moves.shard_of(JOB, shard) for shard in "abc"] == ["a", "c", "c"]
    assert known.note([MoveEpoch("1", 4, None), MoveEpoch("2", 5, None)])
    assert not known.moves
