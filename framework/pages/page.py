"""A page of the dashboard: its path, what it reads, its template, and its actions."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from framework.pages.caller import Role
from framework.pages.forms import Field
from framework.pages.view import ANSWER_WITHIN_S, Facts, View

Menu: TypeAlias = Literal["", "now", "jobs", "work", "control", "records"]
"""The part of the menu that names a page; empty for a page that others lead to."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What an action would do, before it is applied."""

    text: str
    count: int
    """The number of things that it would change."""
    sample: Sequence[str] = ()
    """The names of some of them."""
    effect: str = ""
    """What follows, in one or two sentences."""


class Action:
    """A change that a page offers. The form of the page has its fields; the caller sees a preview before it is applied."""

    name: str
    """Its value of the field ``action``."""
    label: str
    role: ClassVar[Role] = "operate"
    is_harmful: bool = False
    """Whether it cannot be undone: the button has another colour."""
    fields: ClassVar[Sequence[Field]] = ()
    """The fields of the form that it reads, beside the chosen rows."""

    async def preview(self, view: View, form: Mapping[str, Sequence[str]]) -> Preview:
        """Return what it would do.

        Raises:
            ValueError, FrameworkError: the form is not complete, or names something that is not there.
        """
        raise NotImplementedError

    async def apply(self, view: View, form: Mapping[str, Sequence[str]]) -> str:
        """Do it, and return what was done, in one sentence. Raises as ``preview``."""
        raise NotImplementedError


class Page:
    """One page, served as HTML at ``path``, and as JSON at ``/api`` and its path.

    The template is ``templates/NAME.html`` beside the module of the class, unless ``template`` names another one there.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    title: ClassVar[str]
    menu: ClassVar[Menu] = ""
    role: ClassVar[Role] = "read"
    """What a caller needs on a shard to see the page."""
    of_jobs: ClassVar[bool] = False
    """Whether a caller with the role for some feature categories only sees it: it then shows the jobs of these alone."""
    overview_part: ClassVar[str] = ""
    """The id of the element that the overview shows too. It is loaded after the overview, so that its read delays nothing."""
    class_part: ClassVar[str] = ""
    """The id of the element that the page of a class shows too (several as ``one, #two``); it is asked with the word ``class``."""
    mends: ClassVar[Collection[str]] = ()
    """The codes of the causes (``diagnose``) that an operator mends or sees here: each cause leads to these pages."""
    filters_class: ClassVar[bool] = False
    """Whether the word ``class`` of the query chooses what is of one class: a cause of one class leads to this part."""
    within_s: ClassVar[float] = 1.0
    """How long it waits for a shard."""
    fresh_s: ClassVar[float] = 2.0
    """For how long all callers share what was read."""
    is_long: ClassVar[bool] = False
    """Whether its read is long (``View.read_long``): a caller may begin few a minute."""
    searched_by: ClassVar[Collection[str]] = ()
    """The words of the query for which the page searches all jobs: such a read is expensive."""
    template: ClassVar[str] = ""
    actions: Sequence[Action] = ()

    async def read(self, view: View) -> Facts:
        """Return what the page shows, as JSON.

        Raises:
            UnknownNameError: the path names something that is not there.
            ValueError: a word of the query is not allowed.
        """
        raise NotImplementedError

    def is_expensive(self, view: View) -> bool:
        """Return whether the read is long, so that a caller may ask for few a minute."""
        return self.is_long or self.within_s > ANSWER_WITHIN_S or bool(set(self.searched_by) & view.query.keys())

    @property
    def template_path(self) -> Path:
        """The file of its template."""
        return Path(inspect.getfile(type(self))).parent / "templates" / (self.template or f"{self.name}.html")
