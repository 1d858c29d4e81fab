from framework.wire import keys


def test_keys_are_sidekiqs_or_begin_with_aw():
    sidekiq = (
        keys.QUEUES,
        keys.SCHEDULE,
        keys.RETRY,
        keys.DEAD,
        keys.PROCESSES,
        keys.queue("a:b"),
        keys.signals("h:1:n"),
    )
    assert sidekiq == ("queues", "schedule", "retry", "dead", "processes", "queue:a:b", "h:1:n-signals")
    assert keys.work("h:1:n") == ("h:1:n:work", "h:1:n:workers")
    assert all(key.startswith("aw:") for key in (keys.REGISTRY, keys.working("i"), keys.lease("i"), keys.status("j")))


def test_migration_identity_contains_the_queue():
    assert keys.migrated_queue(keys.owner(keys.working(keys.migration_identity("a:b")))) == "a:b"
    assert keys.migrated_queue("aw:1:migration") is None
