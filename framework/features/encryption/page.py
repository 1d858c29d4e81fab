"""The store of large arguments: its blobs, and those that no job names. Operators make and sweep it here."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import RedisError

from framework.admin.audit import audited
from framework.admin.port import current
from framework.admin.statistics import server_times
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.protection import open_offload
from framework.features.encryption.settings import EncryptionSettings
from framework.features.encryption.sweep import PayloadSweeper, SweepResult, count_store
from framework.pages.forms import Form
from framework.pages.page import Action, Page, Preview
from framework.pages.view import Facts, View
from framework.text import Sentence, format_bytes, format_count

_COUNT_WITHIN_S = 2.0

T = TypeVar("T")


class StoreAction(Action):
    """An action on the store, which belongs to the jobs of all shards. Its record is on main."""

    role = "admin"

    def opened(self, view: View) -> PayloadOffload:
        """Return the store.

        Raises:
            ValueError: none is configured, or the caller does not have the role on each shard.
        """
        offload = open_offload(_settings(view))
        if offload is None:
            raise ValueError(Sentence("No payload store is configured: set payload_offload.url."))
        if not all(view.caller.may(self.role, shard) for shard in current().shards):
            raise ValueError(
                Sentence(
                    "The store belongs to the jobs of all shards: it needs the role {role} on each.", role=self.role
                )
            )
        return offload


class SweepStore(StoreAction):
    """Delete the blobs that no job has named for long: ``payloads sweep``."""

    name = "sweep"
    label = "Sweep"
    is_harmful = True

    async def preview(self, view: View, form: Form) -> Preview:  # noqa: ARG002 - it has no fields
        """Read all jobs, and return what a sweep would do now."""
        sweep = self._sweep(view, dry_run=True)
        found = await _answered(sweep)
        return Preview(
            Sentence(
                "Sweep: delete {blobs}, {size}?",
                blobs=format_count(found.deleted, "blob"),
                size=format_bytes(found.deleted_size),
            ),
            found.unnamed,
            [
                Sentence(
                    "{blobs} in the store, {candidates:,} of them older than the time to keep",
                    blobs=format_count(found.blobs, "blob"),
                    candidates=found.candidates,
                ),
                Sentence(
                    "{unnamed:,} that no job names now: noted for a later sweep", unnamed=found.unnamed - found.deleted
                ),
            ],
            Sentence(
                "A blob is deleted if this sweep, and one that long ago, found no job of any shard that names it. This "
                "cannot be undone."
            ),
        )

    async def apply(self, view: View, form: Form) -> str:  # noqa: ARG002 - it has no fields
        """Sweep the store."""
        sweep = self._sweep(view, dry_run=False)
        recorded = audited("payloads sweep", lambda _: sweep(), {}, _deleted)
        found = await _answered(lambda: recorded(current().shards["main"]))
        noted = found.unnamed - found.deleted
        return Sentence(
            "{blobs} deleted, {size}; {noted:,} noted",
            blobs=format_count(found.deleted, "blob"),
            size=format_bytes(found.deleted_size),
            noted=noted,
        )

    def _sweep(self, view: View, *, dry_run: bool) -> Callable[[], SweepResult]:
        offload, keep_s = self.opened(view), _settings(view).payload_offload.keep
        clients = {name: shard.client for name, shard in current().shards.items()}

        def sweep() -> SweepResult:
            if reason := offload.reason_not_made():
                raise ValueError(Sentence("{url} is no payload store: {reason}.", url=offload.url, reason=reason))
            return PayloadSweeper(offload, keep_s, clients).sweep(dry_run=dry_run)

        return sweep


class MakeStore(StoreAction):
    """Make the folder or the prefix of the bucket a payload store: ``payloads create``."""

    name = "create"
    label = "Make the store"

    async def preview(self, view: View, form: Form) -> Preview:  # noqa: ARG002 - it has no fields
        """Return whether it is none yet."""
        offload = self.opened(view)
        is_missing = bool(await _answered(offload.reason_not_made))
        text = Sentence("Make {url} a payload store?") if is_missing else Sentence("{url} is a payload store already.")
        effect = Sentence(
            "Do it once, and only if this is the right folder or bucket: then pushes may store arguments there."
        )
        return Preview(Sentence(text, url=offload.url), int(is_missing), (), effect)

    async def apply(self, view: View, form: Form) -> str:  # noqa: ARG002 - it has no fields
        """Write the file that marks a store."""
        offload = self.opened(view)
        make = audited("payloads create", lambda _: offload.make_store(), {"store": offload.url})
        made = await _answered(lambda: make(current().shards["main"]))
        text = Sentence("{url} is a payload store now") if made else Sentence("{url} was a payload store before")
        return Sentence(text, url=offload.url)


class PayloadStorePage(Page):
    """Show what the store holds."""

    name = "payloads"
    path = "/payloads"
    title = "Payload store"
    menu = "control"
    mends = ("packed_jobs_away",)
    fresh_s = 30.0
    actions = (SweepStore(), MakeStore())

    def is_expensive(self, view: View) -> bool:  # noqa: ARG002 - of Page
        """Return that it is: it lists the blobs."""
        return True

    async def read(self, view: View) -> Facts:
        """Count the blobs, for two seconds at most, and ask each shard whether it answers: a sweep needs all of them."""
        settings = _settings(view).payload_offload
        offload = open_offload(_settings(view))
        await view.each(server_times)
        facts: Facts = {"url": None, "problem": "", "keep_s": settings.keep, "threshold": settings.threshold}
        if offload is None:
            return facts
        facts |= {"url": offload.url, "kind": "folder" if settings.folder is not None else "bucket"}
        try:
            facts["problem"] = await asyncio.to_thread(offload.reason_not_made)
            counted = await asyncio.to_thread(count_store, offload, settings.keep, _COUNT_WITHIN_S)
        except OSError as error:
            return facts | {"problem": Sentence("it does not answer: {error}", error=error)}
        return facts | counted._asdict()


def _settings(view: View) -> EncryptionSettings:
    return EncryptionSettings.of(view.installation.settings)


def _deleted(result: SweepResult) -> int:
    return result.deleted


async def _answered(step: Callable[[], T]) -> T:
    """Return what the step returns; it may read all jobs.

    Raises:
        ValueError: a shard or the store does not answer.
    """
    try:
        return await asyncio.to_thread(step)
    except (RedisError, OSError) as error:
        raise ValueError(
            Sentence(
                "Nothing was deleted or made: a shard or the payload store does not answer ({error}).", error=error
            )
        ) from None
