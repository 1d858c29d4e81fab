"""Nothing is used up by failing: the thousandth lost connection costs what the first did."""


def test_no_number_of_failed_attempts_wears_a_producer_out(scene):
    """Whatever is counted per connection must be given back with it, above all by those that never came to be."""
    producer = scene.producer()
    scene.server.stop()
    for number in range(250):
        told = producer.push("NoteWorker", f"refused {number}")
        assert (told["error"], told["maybe_written"]) == ("ShardUnavailableError", False)
    scene.server.start()
    told = producer.push("NoteWorker", "taken")
    assert told.get("jid"), told
    for number in range(250):
        scene.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        told = producer.push("NoteWorker", f"after reset {number}")
        assert told.get("jid"), told


def test_no_number_of_lost_connections_wears_a_process_out(scene):
    process = scene.worker("-c", "2").ready()
    for number in range(70):
        scene.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        scene.enqueue("NoteWorker", f"after {number}")
        scene.wait_for("note", f"after {number}", timeout_s=10)
    scene.settled(process)
    assert process.end() == 0
