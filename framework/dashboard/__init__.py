"""The dashboard: see and steer the whole fleet in a browser (extra ``dashboard``).

    from framework import dashboard

    def authorize(request):
        user = request.session.get("user")                     # whatever the application knows
        return dashboard.Caller(user, role="operate") if user else None

    app.mount("/jobs", dashboard.app(authorize=authorize))     # FastAPI, Starlette

``authorize`` returns the ``Caller`` of a request, or ``None`` to refuse it; it may be ``async def``. Without it every request is
refused. ``application-worker dashboard`` serves the dashboard on its own.
"""

from framework.version import install_extra

try:
    from framework.dashboard.application import app
except ModuleNotFoundError as error:
    if error.name not in ("starlette", "jinja2", "markupsafe"):
        raise
    raise ModuleNotFoundError(f"framework.dashboard needs {error.name}: {install_extra('dashboard')}") from None
from framework.pages.caller import Caller, Role
from framework.pages.page import Action, Page, Preview
from framework.pages.view import View

__all__ = ["Action", "Caller", "Page", "Preview", "Role", "View", "app"]
