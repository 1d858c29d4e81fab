"""Check what a process does with files of other processes: of running and ended ones, damaged ones, and those of another version."""

import os

import pytest

from framework.errors import ShardUnavailableError
from framework.features.reliable_push.kept_push import DamagedRecordError, KeptPush, with_checksum, without_checksum
from framework.features.reliable_push.push_file import read_file, set_aside_files
from framework.push.job_batch import JobBatch
from framework.wire.status_key import TrackedJob
from tests.features.reliable_push.conftest import DOWN, Producer
from tests.harness import until
from tests.push.conftest import worker


def keep(producer, *numbers):
    """Keep a push per number, and end the producer; return the path of its file."""
    shop = producer(url=DOWN)
    job = worker(queue="default")
    for number in numbers:
        job.perform_async(number)
    shop.end()
    return shop.files[0]


def replayed(producer):
    shop = producer()
    shop.reliable.replay()
    return shop


def events(lines):
    return [line["event_name"] for line in lines()]


def test_file_of_a_running_process_is_left_to_it(producer, redis_url, jobs):
    first = producer(url=DOWN)
    worker(queue="default").perform_async(1)
    second = Producer(first.folder, redis_url)
    second.reliable.replay()
    assert jobs() == []
    first.end()
    second.reliable.replay()
    assert [one["args"] for one in jobs()] == [[1]]
    second.end()


def test_start_replays_the_file_of_an_ended_process(producer, jobs, lines):
    keep(producer, 1, 2)
    shop = producer()
    shop.reliable.start()
    until(lambda: not shop.files)
    # The file is removed before the last line is logged; the round ends after it.
    with shop.stopped_replay():
        assert {"push.file_taken_over", "push.replayed"} <= set(events(lines))
    assert [one["args"] for one in jobs()] == [[1], [2]]


def test_unfinished_last_line_is_dropped(producer, jobs):
    path = keep(producer, 1, 2)
    path.write_bytes(path.read_bytes()[:-20])
    shop = replayed(producer)
    assert [one["args"] for one in jobs()] == [[1]]
    assert (shop.files, set_aside_files(shop.folder)) == ([], [])


def test_damaged_line_is_set_aside_and_others_replayed(producer, jobs, lines):
    path = keep(producer, 1, 2, 3)
    head, first, second, third, end = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([head, first, second.replace(b"default", b"dafault"), third, end]))
    shop = replayed(producer)
    assert [one["args"] for one in jobs()] == [[1], [3]]
    (aside,) = set_aside_files(shop.folder)
    assert b"dafault" in aside.read_bytes()
    assert "push.file_set_aside" in events(lines)


def test_half_a_mark_counts_as_tried(producer, jobs):
    path = keep(producer, 1)
    head, line, end = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([head, b"done-00000" + line[10:], end]))
    (entry,) = read_file(path).entries
    assert entry.tried_at == entry.kept_at
    replayed(producer)
    assert len(jobs()) == 1


def test_file_without_a_header_is_set_aside(producer, jobs, lines):
    path = keep(producer, 1)
    data = path.read_bytes()
    path.write_bytes(b"x" + data)
    shop = replayed(producer)
    assert jobs() == []
    assert [one.read_bytes() for one in set_aside_files(shop.folder)] == [b"x" + data]
    assert events(lines)[-1] == "push.file_set_aside"


def test_file_of_another_version_stays_as_it_is(producer, jobs, lines, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr("framework.features.reliable_push.push_file.VERSION", 2)
        path = keep(producer, 1)
    data = path.read_bytes()
    producer().reliable.replay()
    assert jobs() == []
    assert path.read_bytes() == data
    assert events(lines)[-1] == "push.file_left"


def test_file_that_cannot_be_opened_stays_as_it_is(producer, lines):
    path = keep(producer, 1)
    path.unlink()
    # For root too: a folder cannot be opened for writing.
    path.mkdir()
    producer().reliable.replay()
    assert path.is_dir()
    assert events(lines)[-1] == "push.file_left"
    path.rmdir()


def test_file_without_its_final_name_is_deleted(producer):
    shop = producer()
    shop.folder.mkdir()
    old, new = shop.folder / "a.new", shop.folder / "b.new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    shop.reliable.replay()
    assert list(shop.folder.iterdir()) == [new]


def test_file_of_an_unknown_shard_is_kept(producer, lines):
    path = keep(producer, 1)
    shop = producer()
    del shop.reliable._round._shards["main"]
    result = shop.reliable.replay()
    assert result.refused == {("main", "default")}
    assert path.exists()
    assert events(lines)[-1] == "push.replay_refused"


def test_folder_that_others_may_write_is_neither_read_nor_used(producer, jobs, lines):
    path = keep(producer, 1)
    path.parent.chmod(0o777)
    shop = replayed(producer)
    assert jobs() == []
    assert "other users may write into the folder" in lines()[-1]["message"]
    down = producer(url=DOWN)
    with pytest.raises(ShardUnavailableError, match="chmod go-w"):
        worker(queue="default").perform_async(2)
    down.end()
    path.parent.chmod(0o700)
    shop.reliable.replay()
    assert [one["args"] for one in jobs()] == [[1]]


def test_fifo_and_link_in_the_folder_block_nothing(producer, jobs, lines):
    path = keep(producer, 1)
    os.mkfifo(path.with_name("0.fifo.1.pushes"))
    os.mkfifo(path.with_name("0.fifo.1.new"))
    os.utime(path.with_name("0.fifo.1.new"), (0, 0))
    path.with_name("0.link.1.pushes").symlink_to("/dev/zero")
    shop = replayed(producer)
    assert [one["args"] for one in jobs()] == [[1]]
    refused = [line["message"] for line in lines() if line["event_name"] == "push.file_left"]
    assert ["no regular file" in message for message in refused] == [True, True]
    assert len(shop.files) == 2


@pytest.mark.parametrize(
    "command",
    [
        ["FLUSHALL"],
        ["SET", "aw:status:another", "queued", "EX", 60],
        ["SET", "aw:status:JID", "completed", "EX", 60],
        ["SET", "aw:status:JID", "queued", "EX", "60", "GET"],
        ["SET", "aw:status:JID", "queued", "KEEPTTL", 60],
        "FLUSHALL",
    ],
)
def test_record_with_another_command_is_damaged(command):
    status = TrackedJob("JID", 60).queued_command(None)
    push = KeptPush("main", JobBatch("default", [b"{}"], ["JID"], statuses=[status]), "t", 1.0, False, False)
    record = push.encode()
    assert KeptPush.decode(record) == push
    fields = without_checksum(record)
    fields["statuses"] = [command]
    with pytest.raises(DamagedRecordError):
        KeptPush.decode(with_checksum(fields))


@pytest.mark.parametrize("lists", [["default~a"], ["default~a", 1], "no list"])
def test_record_keeps_the_sub_queue_of_each_job(lists):
    batch = JobBatch("default", [b"{}", b"{}"], ["one", "other"], lists=["default~a", "default~b"])
    record = KeptPush("main", batch, "t", 1.0, False, False).encode()
    assert KeptPush.decode(record).batch.lists == ["default~a", "default~b"]
    fields = without_checksum(record)
    fields["lists"] = lists
    with pytest.raises(DamagedRecordError):
        KeptPush.decode(with_checksum(fields))
    # A record of an older version has none.
    del fields["lists"]
    assert KeptPush.decode(with_checksum(fields)).batch.lists is None
