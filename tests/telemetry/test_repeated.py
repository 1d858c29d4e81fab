from framework.telemetry.repeated import Repeated


def test_a_line_is_due_once_in_a_while_with_what_happened_since():
    repeated = Repeated(60.0)
    assert [repeated.due("a", 0.0) for _ in range(4)] == [1, 0, 0, 0]
    assert repeated.due("b", 0.0) == 1
    assert repeated.due("a", 59.9) == 0
    assert [repeated.due("a", 60.0), repeated.due("a", 60.0)] == [5, 0]
    assert repeated.due("a", 500.0) == 2
