"""The settings in force: each with its value and where it comes from, secrets masked; and the Redis of each shard."""

from typing import Any

from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.settings.base import SettingsSchema
from framework.settings.shown import ShownSetting, shown_settings
from framework.store.embedded import endpoint_of


class SettingsPage(Page):
    """Show the settings of the process that serves the dashboard."""

    name = "settings"
    path = "/settings"
    title = "Settings"
    menu = "records"
    role = "admin"
    fresh_s = 10.0

    async def read(self, view: View) -> Facts:
        """Read each setting, and ask the server of each shard about itself."""
        settings = view.installation.settings
        shown = shown_settings(settings, SettingsSchema(type(settings)).file_by_key)
        # A caller who is admin on some shards sees the address of no other one.
        hidden = tuple(f"shards.{name}." for name in settings.shards if not view.may("admin", name))
        seen = [one for one in shown if not one.name.startswith(hidden)]
        servers = await view.each(lambda name: _server_facts(view.shards[name].client.info()))
        return {
            "environment": settings.env_name,
            "folder": str(settings.config_dir),
            "given": [_facts(one) for one in seen if one.origin],
            "defaults": [_facts(one) for one in seen if not one.origin],
            "unknown": sorted(settings.unknown_variables),
            "shards": [
                {"shard": name, "address": endpoint.shown, "user": endpoint.user, **servers.get(name, _NO_ANSWER)}
                for name in sorted(view.shards)
                if name in settings.shards
                for endpoint in [endpoint_of(settings, name)]
            ],
        }


_NO_ANSWER: Facts = dict.fromkeys(("role", "version", "clients", "used_bytes", "most_bytes", "eviction"))


def _server_facts(info: Any) -> Facts:
    return {
        "role": info.get("role"),
        "version": info.get("valkey_version") or info.get("redis_version"),
        "clients": info.get("connected_clients"),
        "used_bytes": info.get("used_memory"),
        "most_bytes": info.get("maxmemory") or None,
        "eviction": info.get("maxmemory_policy"),
    }


def _facts(one: ShownSetting) -> Facts:
    return {"name": one.name, "value": one.value, "origin": one.origin}
