from framework.admin.explain_reader import ShardSnapshot
from framework.features.results.explain import ResultReader

CALLED = {"aw_result": [3_600, "3f2a"]}


def test_wishes_of_a_called_job_name_its_caller():
    reader = ResultReader(ShardSnapshot(None, "main"))
    text = "the process 3f2a has called it, and waits for its answer, which is kept for 1 h after its end"
    assert reader.wishes(CALLED).lines == [("result", text)]
    assert reader.wishes({}) == ((), {"call": None})


def test_class_of_called_jobs_has_their_number():
    reader = ResultReader(ShardSnapshot(None, "main"))
    assert reader.of_class("W") == ([], {"called": 0})
    reader.count([CALLED, {}])
    assert reader.of_class("W") == ([("result", "1 of these jobs has a caller that waits")], {"called": 1})
    reader.count([CALLED])
    assert reader.of_class("W").lines == [("result", "2 of these jobs have callers that wait")]
