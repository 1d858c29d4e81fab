from framework.admin.explain_reader import ShardSnapshot
from framework.features.profiling.explain import ProfileReader
from framework.wire import keys


def test_class_of_profiled_jobs_has_their_number(redis):
    reader = ProfileReader(ShardSnapshot(redis, "main"))
    assert reader.of_class("W") == ([], {"profiled": 0, "profiles": 0})
    reader.count([{"aw_profile": True}, {}])
    redis.hset(keys.profile("j"), mapping={"class": "W", "at": 5, "duration_s": 1.5, "error": "KeyError"})
    redis.zadd(keys.PROFILES, {"j": 5})
    ((heading, text),), fields = reader.of_class("W")
    assert (heading, fields) == ("profile", {"profiled": 1, "profiles": 1})
    assert text.startswith("1 of these jobs profiled, 1 kept: `")


def test_profile_of_a_job_is_kept_with_its_error(redis):
    reader = ProfileReader(ShardSnapshot(redis, "main"))
    assert reader.kept("j") is None
    redis.hset(keys.profile("j"), mapping={"class": "W", "at": 5, "duration_s": 1.5, "error": "KeyError"})
    kept = reader.kept("j")
    assert kept is not None
    assert kept.text.startswith("its profile on main: a run of 1.5 s, ended with KeyError; `")
    assert kept.value == {"at": 5.0, "duration_s": 1.5}
    assert reader.wishes({"aw_profile": True}).lines == [
        ("profile", "each run is profiled, and its page kept for a day")
    ]
