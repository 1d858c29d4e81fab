"""What the dashboard's page of a class offers about pauses: hold its jobs, and let them run again."""

from collections.abc import Mapping

from framework.admin.audit import acting_name
from framework.admin.queue_actions import note_pause
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag, unset_flag
from framework.features.pause.admission import resume
from framework.pages.assumed import assumed_text
from framework.pages.forms import MINUTES, REASON, Form, lasts_s_of, line, reason_of
from framework.pages.shard_action import ClassAction, FormAt
from framework.text import Sentence, format_duration

_HELD_SHOWN_S = 20.0
"""How long the return of held jobs may take on a shard; processes go on with it."""


class PauseClass(ClassAction):
    """Hold the jobs of a class when they are fetched."""

    name = "pause"
    label = "Pause class"
    record = "jobs pause"
    fields = (MINUTES, REASON)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the time and the reason."""
        return {"lasts_s": lasts_s_of(form), "reason": reason_of(form)}

    def shown(self, at: FormAt, one: str) -> str:
        """Return what holds now, and what would hold."""
        name = pause_flag(one)
        return assumed_text(at.view, at.shard, one, {"flags": {name: Flag(name, 100, "assumed")}})

    def effect(self, form: Form) -> str:
        """Return what follows."""
        return Sentence(
            "For {time}, its jobs are held when they are fetched, with their arguments, retries and locks. Running jobs "
            "go on. Then they return to their queues.",
            time=format_duration(lasts_s_of(form)),
        )

    def change(self, at: FormAt, one: str) -> int:
        """Set the pause flag, and note the pause."""
        reason = reason_of(at.form)
        set_flag(at.shard.client, Flag(pause_flag(one), 100, reason, acting_name()), lasts_s_of(at.form))
        note_pause(at.shard.client, "pause", one, reason)
        return 1


class ResumeClass(ClassAction):
    """End the pause of a class, and return its held jobs to their queues."""

    name = "resume"
    label = "Resume class"
    record = "jobs resume"
    fields = (REASON,)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the reason."""
        return {"reason": line(form, "reason")}

    def shown(self, at: FormAt, one: str) -> str:
        """Return what holds now, and what would hold."""
        name = pause_flag(one)
        return assumed_text(at.view, at.shard, one, {"flags": {name: Flag(name, 0, "assumed")}})

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "Held jobs return to their queues in their order. What a strategy or a breaker pauses stays held until that "
            "ends."
        )

    def change(self, at: FormAt, one: str) -> int:
        """Clear the pause flag, and return the held jobs."""
        ended = unset_flag(at.shard.client, pause_flag(one))
        if ended:
            note_pause(at.shard.client, "resume", one, line(at.form, "reason"))
        # Only processes that know the class can say whether a strategy pauses it.
        done = resume(at.shard.client, one, b"", class_known=False, max_s=_HELD_SHOWN_S)
        return int(ended or done.moved > 0)
