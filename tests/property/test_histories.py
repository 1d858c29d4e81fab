"""Check histories written by hand with the rules of tests/proofs/machine/rules.py: past findings, and each promise.

Two processes serve the first shard (0 and 1), one the second (2); a crashed process does not count.
"""

import pytest

from tests.proofs.machine.worker import SERVED


def push(state, *queues, kind="plain", fate="go"):
    for queue in queues:
        state.push(kind=kind, queue=queue, fate=fate)


def step_until_command(state, which, part, command):
    """Run the thread until its next command is this one."""
    act = state.cluster.awake()[which].act(part)
    state.cluster.step(act)
    while act.about != command:
        assert act.movable, f"{part} waits, and never came to {command}"
        state.cluster.step(act)
    return act


def run_out(state, act):
    """Step the thread until it waits."""
    while act.movable:
        state.cluster.step(act)


@pytest.mark.proves("I1", "m1")
def test_dead_process_is_emptied_one_command_at_a_time(state):
    push(state, "a", "b", "c")
    state.work(which=0)
    state.crash(which=0, late=False)
    state.pass_time(seconds=45, beating=True)
    state.turn(which=0, part="reaper")
    state.teardown()


@pytest.mark.proves("I3", "m4")
def test_process_that_returns_keeps_its_jobs(state):
    push(state, "a", "b")
    state.work(which=0)
    state.freeze(which=0)
    state.pass_time(seconds=45, beating=True)
    reaper = step_until_command(state, 0, "reaper", "pipeline")
    state.thaw(which=0)
    state.turn(which=0, part="lease")
    run_out(state, reaper)
    state.teardown()


@pytest.mark.parametrize("how", ["failed", "refused", "later", "done"])
@pytest.mark.proves("I2", "I4", "F6", "m2", "m5")
def test_fenced_process_moves_nothing(state, how):
    push(state, "a")
    state.work(which=0)
    state.freeze(which=0)
    state.pass_time(seconds=45, beating=True)
    state.turn(which=0, part="reaper")
    state.thaw(which=0)
    state.end(which=0, how=how, on=True)
    state.teardown()


@pytest.mark.proves("I7", "F10", "m3")
def test_fetch_with_a_lost_reply_is_found_again(state):
    state.pass_time(seconds=12, beating=True)
    leader = step_until_command(state, 0, "processor-0", "BLMOVE")
    for _ in SERVED:
        state.cluster.step(leader, "lost")
    push(state, "a")
    state.teardown()


@pytest.mark.proves("I8", "m6")
def test_no_process_fetches_before_it_is_registered(state):
    state.freeze(which=0)
    state.freeze(which=0)
    state.notice()
    for client in state.cluster.servers.clients.values():
        client.client_kill_filter(_type="normal", skipme=True)
    push(state, "a")
    worker = state.cluster.boot("main", eager=False)
    for act in worker.slots():
        state.cluster.turn(act)
    state.teardown()


@pytest.mark.proves("I1", "I13", "m7")
def test_due_jobs_move_one_command_at_a_time(state):
    for delay in (-5, -5, 40):
        state.schedule(kind="plain", queue="a", delay=delay, fate="go")
    state.turn(which=0, part="poller")
    state.teardown()


@pytest.mark.proves("F7", "m8")
def test_no_process_counts_as_dead_after_an_outage(state):
    push(state, "a", "b")
    state.work(which=0)
    state.pass_time(seconds=45, beating=False)
    state.turn(which=1, part="lease")
    for _ in range(2):
        state.turn(which=1, part="reaper")
    state.teardown()


@pytest.mark.proves("I4", "m9")
def test_job_is_acknowledged_after_it_has_returned(state):
    push(state, "a", "a", "a")
    for _ in range(3):
        state.work(which=0)
    state.pass_time(seconds=2, beating=True)
    state.work(which=0)
    state.teardown()


@pytest.mark.proves("I3", "F6", "m10")
def test_suspended_process_starts_no_stale_job(state):
    push(state, "a", "b")
    state.turn(which=0, part="processor-0")
    state.freeze(which=0)
    state.pass_time(seconds=45, beating=True)
    state.turn(which=0, part="reaper")
    state.thaw(which=0)
    state.work(which=0)
    state.teardown()


@pytest.mark.proves("I3", "F6")
def test_job_fetched_a_moment_ago_may_start(state):
    """The fetch renewed the lease, so it lasts longer than a job may wait for its start, however late the last heartbeat."""
    state.pass_time(seconds=20, beating=True)
    state.freeze(which=0)
    state.pass_time(seconds=12, beating=True)
    push(state, *"aaaa")
    state.thaw(which=0)
    state.turn(which=0, part="processor-0")
    state.freeze(which=0)
    state.pass_time(seconds=7, beating=True)
    state.turn(which=0, part="reaper")
    state.thaw(which=0)
    state.work(which=0)
    state.teardown()


@pytest.mark.proves("I1", "F14")
def test_maxmemory_takes_no_job_from_its_queue(state):
    state.freeze(which=0)
    state.pass_time(seconds=12, beating=True)
    push(state, "a", "b", "c", "a", "b", "c", "proof")
    state.thaw(which=0)
    state.server(shard="main", what="full")
    for _ in range(3):
        state.work(which=0)
    state.teardown()


@pytest.mark.proves("I12", "F4")
def test_returned_job_is_the_next(state):
    push(state, *"aaaaaa")
    for which in (0, 1):
        state.work(which=which)
    state.stop(which=0, patient=False)
    state.work(which=0)
    state.teardown()


@pytest.mark.parametrize("fate", ["reset", "lost"])
@pytest.mark.proves("I1", "I2", "I18")
def test_cross_shard_job_moves_one_command_at_a_time(state, fate):
    state.schedule(kind="for another shard", queue="a", delay=-5, fate="go")
    state.pass_time(seconds=7, beating=True)
    state.turn(which=0, part="poller")  # marks it
    state.pass_time(seconds=7, beating=True)
    poller = step_until_command(state, 0, "poller", "receive_transfer")
    state.cluster.step(poller, fate)
    run_out(state, poller)
    for _ in range(8):
        state.pass_time(seconds=12, beating=True)
        for which in (1, 0):
            state.turn(which=which, part="poller")
    state.teardown()


@pytest.mark.proves("I8")
def test_dead_process_is_registered_while_it_has_jobs(state):
    push(state, "a")
    state.work(which=0)
    state.operate(shard="main", what="break", which=0)
    state.crash(which=0, late=False)
    state.pass_time(seconds=45, beating=True)
    state.turn(which=0, part="reaper")
    state.teardown()


@pytest.mark.proves("I3", "I7")
def test_unread_reply_is_not_lost(state):
    """Found by the state machine: two comparisons before the thread has read the reply."""
    push(state, "a")
    state.turn(which=0, part="record")  # finds that the working list exists now
    for _ in range(3):
        state.turn(which=0, part="reaper")
    state.work(which=0)
    state.teardown()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.proves("I2", "F10")
def test_push_in_doubt_is_written_once(state, later):
    if later:
        state.schedule(kind="plain", queue="a", delay=10, fate="lost")
    else:
        push(state, "a", fate="lost")
    state.teardown()


# --- resources of jobs


def taken(state):
    """Return the slots of the limited class, and the jobs that wait for one."""
    client = state.cluster.servers.clients["main"]
    return client.zrange("aw:limit:Limited:running", 0, -1), client.zcard("aw:limit:Limited:waiting:")


@pytest.mark.proves("I10", "R42", "F45")
def test_slot_of_a_dead_process_goes_to_the_next_in_line(state):
    push(state, "a", "b", "c", kind="limited")
    state.work(which=0)
    before, waiting = taken(state)
    assert (len(before), waiting) == (1, 2)
    state.crash(which=0, late=False)
    state.pass_time(seconds=45, beating=True)
    state.turn(which=0, part="reaper")
    after, _ = taken(state)
    assert len(after) == 1
    assert after != before
    state.teardown()


@pytest.mark.parametrize("how", ["failed", "later", "done"])
@pytest.mark.proves("I10", "R42", "m5")
def test_fenced_process_frees_only_its_own_slots(state, how):
    push(state, "a", "b", kind="limited")
    state.work(which=0)
    state.freeze(which=0)
    state.pass_time(seconds=45, beating=True)
    state.turn(which=0, part="reaper")
    state.work(which=0)
    state.thaw(which=0)
    before = taken(state)
    assert len(before[0]) == 1
    state.end(which=0, how=how, on=False)
    state.step(which=0, fate="go")
    assert taken(state) == before
    state.teardown()


def push_keyed(state, queue="a"):
    """Push a job that must be unique; return whether it was written."""
    before = len(state.cluster.checks.model.owed)
    state.push_by_class(which=2, queue=queue, delay=0, fate="go")
    return len(state.cluster.checks.model.owed) > before


@pytest.mark.parametrize("how", ["failed", "later", "done", "discarded"])
@pytest.mark.proves("I9", "R38", "F44")
def test_equal_jobs_are_refused_only_while_one_exists(state, how):
    assert push_keyed(state)
    state.work(which=0)
    assert not push_keyed(state)
    state.crash(which=0, late=False)
    assert not push_keyed(state)
    state.pass_time(seconds=45, beating=True)
    state.turn(which=0, part="reaper")
    assert not push_keyed(state)
    state.work(which=0)
    state.end(which=0, how=how, on=True)
    assert push_keyed(state) == (how in ("done", "discarded"))
    state.teardown()


@pytest.mark.proves("I9", "R38", "m5")
def test_fenced_process_releases_no_lock_of_another(state):
    assert push_keyed(state)
    state.work(which=0)
    state.freeze(which=0)
    state.pass_time(seconds=45, beating=True)
    state.turn(which=0, part="reaper")
    state.work(which=0)
    state.thaw(which=0)
    state.end(which=0, how="done", on=True)
    assert not push_keyed(state)
    state.teardown()


@pytest.mark.proves("I10", "R42")
def test_fenced_job_takes_no_slot(state):
    push(state, "a", kind="limited")
    processor = step_until_command(state, 0, "processor-0", "admit")
    state.freeze(which=0)
    state.pass_time(seconds=45, beating=True)
    state.turn(which=0, part="reaper")
    state.thaw(which=0)
    state.cluster.step(processor)
    state.teardown()


@pytest.mark.proves("I10", "R42", "R44")
def test_slot_of_an_ended_job_is_handed_over_in_one_step(state):
    push(state, "a", "b", kind="limited")
    state.work(which=0)
    (first,), waiting = taken(state)
    assert waiting == 1
    state.end(which=0, how="done", on=False)
    state.step(which=0, fate="lost")
    (second,), waiting = taken(state)
    assert (second, waiting) != (first, 1)
    assert waiting == 0
    state.teardown()


@pytest.mark.proves("I10", "R44", "F7")
def test_running_job_keeps_its_slot_after_a_long_outage(state):
    push(state, "a", "b", kind="limited")
    state.work(which=0)
    for _ in range(5):
        state.pass_time(seconds=44, beating=False)
    state.turn(which=1, part="lease")
    state.turn(which=1, part="policies")
    state.work(which=1)
    state.teardown()


@pytest.mark.campaign
def test_answered_writes_survive_a_kill_with_a_busy_disk(state, server, busy_disk):
    busy_disk(server)
    state.corrupt(shard="main", what=2, where="schedule")
    state.schedule(kind="suspect", queue="a", delay=41, fate="go")
    state.kill_server(shard="main", chance=9, up=False)
    state.teardown()


@pytest.mark.proves("I1")
def test_retry_of_malformed_entry_returns_to_dead_set(state):
    """Malformed bytes of an unknown queue name `default` in the dead set; a process must serve that queue."""
    state.corrupt(shard="main", what=0, where="retry")
    state.boot(eager=True, shard="main")
    state.retry_by_hand(key="dead", shard="main", which=0)
    assert state.cluster.servers.clients["main"].zcard("dead") == 0
    state.teardown()
    assert state.cluster.servers.clients["main"].zcard("dead") == 1


@pytest.mark.proves("I12")
def test_release_of_paused_job_puts_it_behind_waiting_jobs(state):
    """The end of a pause releases jobs at the left end of their queue, so a job that was never fetched may be ahead."""
    state.freeze(which=0)
    state.operate(shard="main", what="pause class", which=2)
    state.outlive(back=False, how="done", steps=0, which=0)
    state.push_by_class(delay=0, fate="go", queue="a", which=2)
    state.outlive(back=False, how="done", steps=0, which=0)
    state.boot(eager=True, shard="main")
    state.push(fate="go", kind="cannot be written again", queue="a")
    state.teardown()
