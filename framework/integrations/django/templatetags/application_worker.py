"""Tags of the app's templates."""

from django import template
from django.conf import settings

register = template.Library()


@register.simple_tag
def background_jobs_url() -> str:
    """Return the address of the page about background jobs, empty if ``APPLICATION_WORKER_DASHBOARD_URL`` is not set."""
    return str(getattr(settings, "APPLICATION_WORKER_DASHBOARD_URL", "") or "")
