"""The shards: whether each answers, its server and its memory. A development store that has ended is started here."""

import asyncio
from dataclasses import asdict

from framework.admin.access import ask, check_writable
from framework.admin.audit import audited
from framework.admin.diagnosis.facts import redis_cli
from framework.admin.health_of_shards import ShardHealth, read_health
from framework.pages.forms import Form
from framework.pages.page import Action, Page, Preview
from framework.pages.view import Facts, View
from framework.shard.memory_report import budget_of
from framework.shard.redis_errors import unavailable_error
from framework.store.embedded import EmbeddedServer, development_stores
from framework.text import Sentence, format_count, joined


class StartStore(Action):
    """Start the development stores of the chosen shards, on the host of the dashboard."""

    name = "start"
    label = "Start store"
    role = "admin"

    async def preview(self, view: View, form: Form) -> Preview:
        """Return the stores that do not run."""
        stores = self._chosen(view, form)
        shown = [
            Sentence(
                "{name}: {running}, its data is in {data_dir}",
                name=name,
                running=(Sentence("runs already") if store.running else Sentence("does not run")),
                data_dir=store.data_dir,
            )
            for name, store in stores.items()
        ]
        return Preview(
            Sentence("Start {stores}?", stores=format_count(len(stores), "store")),
            len(stores),
            shown,
            Sentence(
                "Each starts on this host with the data of its folder. Processes go on by themselves within 2 s of its first "
                "answer."
            ),
        )

    async def apply(self, view: View, form: Form) -> str:
        """Start them. The audit log of a shard is in its store, so each start is recorded after it."""
        check_writable(f"{self.label}()")
        stores = self._chosen(view, form)
        await asyncio.to_thread(_start, view, stores)
        return joined(Sentence("{name} runs", name=name) for name in stores)

    def _chosen(self, view: View, form: Form) -> dict[str, EmbeddedServer]:
        wanted = [name for name in form.get("row", ()) if name in view.shards and view.may(self.role, name)]
        if not wanted:
            raise ValueError(Sentence("No shard is selected: select some."))
        stores = development_stores(view.installation.settings)
        others = [f"{name} ({view.shards[name].endpoint.shown})" for name in wanted if name not in stores]
        if others:
            raise ValueError(
                Sentence(
                    "The Redis of {names} is no development store of this host: start it where it runs.",
                    names=", ".join(others),
                )
            )
        return {name: stores[name] for name in wanted}


def _start(view: View, stores: dict[str, EmbeddedServer]) -> None:
    for name, store in stores.items():
        store.start()
        try:
            audited("store start", lambda _: 1, {"folder": store.data_dir})(view.shards[name])
        except OSError as error:
            raise unavailable_error(name, view.shards[name].endpoint, error) from error


class ShardsPage(Page):
    """Show each shard with its server, also one that does not answer."""

    name = "shards"
    path = "/shards"
    title = "Shards"
    menu = "work"
    mends = (
        *("certificate_ends", "data_lost", "evicts", "memory_full", "no_figures", "not_persistent", "not_saved"),
        *("rights", "shard_away", "slow_shard"),
    )
    actions = (StartStore(),)

    async def read(self, view: View) -> Facts:
        """Read the server of each shard."""
        found = await view.each(lambda shard: ask(shard, read_health).by_shard[shard])
        settings = view.installation.settings.shards
        stores = development_stores(view.installation.settings)
        shards: list[Facts] = []
        for name, shard in sorted(view.shards.items()):
            state = found.get(name) or ShardHealth(name, str(shard.endpoint), view.unanswered.get(name, ""))
            budget = settings[name].memory_budget if name in settings else 0
            shards.append(
                {
                    **asdict(state),
                    "endpoint": shard.endpoint.shown,
                    "budget": budget_of(budget, state.maxmemory or 0, 0),
                    "is_store": name in stores,
                    "check": "" if shard.endpoint.cluster else f"{redis_cli(shard.endpoint)} PING",
                }
            )
        return {"shards": shards}
