"""The pages of the core. Those of features are in their folders."""

from framework.dashboard.pages.audit_page import AuditPage
from framework.dashboard.pages.causes import CausesPage
from framework.dashboard.pages.class_pages import ClassesPage, ClassPage
from framework.dashboard.pages.deleted_page import DeletedPage
from framework.dashboard.pages.held_page import HeldPage
from framework.dashboard.pages.job_page import JobPage
from framework.dashboard.pages.job_sets import DeadPage, InterruptedPage, RetriesPage, ScheduledPage
from framework.dashboard.pages.overview import OverviewPage
from framework.dashboard.pages.process_pages import ProcessesPage, RunningPage, StackPage
from framework.dashboard.pages.queue_pages import QueuePage, QueuesPage
from framework.dashboard.pages.routing_page import RoutingPage
from framework.dashboard.pages.search_page import SearchPage
from framework.dashboard.pages.settings_page import SettingsPage
from framework.dashboard.pages.shards_page import ShardsPage
from framework.pages.page import Page

_PAGES: tuple[type[Page], ...] = (
    OverviewPage,
    CausesPage,
    QueuesPage,
    ScheduledPage,
    RetriesPage,
    HeldPage,
    DeadPage,
    InterruptedPage,
    DeletedPage,
    RunningPage,
    ProcessesPage,
    ShardsPage,
    ClassesPage,
    RoutingPage,
    AuditPage,
    SettingsPage,
    QueuePage,
    StackPage,
    JobPage,
    ClassPage,
    SearchPage,
)


def own_pages() -> list[Page]:
    """Return the pages of the core, in the order of the menu."""
    return [page() for page in _PAGES]
