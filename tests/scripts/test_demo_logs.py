"""Test how the demo reads the workers' logs."""

import json

from demo.logs import count_ends, otherwise


def test_demo_counts_only_fail_as_a_failure(tmp_path):
    """Deferred, dropped, held or deduplicated jobs are counted by their status, and are no failures."""
    log = tmp_path / "main.log"
    statuses = ["start", "done", "done", "start", "snoozed", "fail", "dropped", "deferred", "paused", "running"]
    lines = [json.dumps({"class": "AWorker", "job_status": status}) for status in statuses]
    lines += [json.dumps({"class": "BWorker", "job_status": "snoozed"}), json.dumps({"message": "of no job"}), "{"]
    log.write_text("\n".join(lines))
    ended = count_ends([log, tmp_path / "none.log"])
    assert ended == {
        "AWorker": {"done": 2, "snoozed": 1, "fail": 1, "dropped": 1, "deferred": 1, "paused": 1},
        "BWorker": {"snoozed": 1},
    }
    assert (
        otherwise(ended["AWorker"]) == "1 failed, as this input makes them; 1 deferred; 1 dropped; 1 paused; 1 snoozed"
    )
    assert otherwise(ended["BWorker"]) == "1 snoozed"
