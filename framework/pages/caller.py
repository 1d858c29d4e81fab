"""The caller of the dashboard, and what it may see and do: a role per shard and per feature category."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from framework.typeguards import short_repr

Role: TypeAlias = Literal["none", "read", "operate", "admin"]
"""``read`` sees, ``operate`` acts on jobs, queues and processes, ``admin`` changes limits and flags too. Each includes the former."""

ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Caller:
    """A user or program that asks the dashboard.

    ``shards`` has the role on the shards where it is another than ``role``; ``feature_categories`` the role for the jobs of
    the classes of a category. Where both have one, the lower counts: ``Caller("ann", feature_categories={"billing": "operate"})``
    sees and operates the jobs of billing on every shard, and nothing else.

    Raises:
        ValueError: a role is not one of none, read, operate, admin; or the name is empty.
    """

    name: str
    """The name in the audit log."""
    role: Role = "none"
    shards: Mapping[str, Role] = field(default_factory=dict[str, Role])
    feature_categories: Mapping[str, Role] = field(default_factory=dict[str, Role])

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a Caller needs a name: the audit log shows it")
        for role in (self.role, *self.shards.values(), *self.feature_categories.values()):
            if role not in ROLES:
                raise ValueError(f"{short_repr(role)} is no role: there are {', '.join(ROLES)}")

    def role_for(self, shard: str, category: str | None = None) -> Role:
        """Return the role on a shard; with a category, that for the jobs of its classes there."""
        on_shard = self.shards.get(shard, self.role)
        own = None if category is None else self.feature_categories.get(category)
        if own is None:
            return on_shard
        return own if shard not in self.shards or ROLES.index(own) < ROLES.index(on_shard) else on_shard

    def may(self, role: Role, shard: str, category: str | None = None) -> bool:
        """Return whether the caller has the role there, or a higher one."""
        return ROLES.index(self.role_for(shard, category)) >= ROLES.index(role)

    def may_for_some_jobs(self, role: Role, shard: str) -> bool:
        """Return whether the caller has the role for the jobs of a category at least."""
        return self.may(role, shard) or any(self.may(role, shard, one) for one in self.feature_categories)

    @property
    def sight(self) -> tuple[object, ...]:
        """What it may see, for caches: two callers with the same sight see the same."""
        return self.role, tuple(sorted(self.shards.items())), tuple(sorted(self.feature_categories.items()))
