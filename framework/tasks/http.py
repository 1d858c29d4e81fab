"""Serve tasks as HTTP and JSON: a Starlette application to mount.

    from framework.tasks.http import TaskScope, tasks_app

    def authorize(request):
        user = request.user
        return TaskScope(owner=user.name, may_change=True) if user.is_authenticated else None

    app.mount("/api", tasks_app(authorize))

Without ``authorize`` every request is refused. ``GET /openapi.json`` describes the routes. Needs the extras ``tasks`` and
``starlette``.
"""

from framework.features.tasks.http import TaskScope, tasks_app

__all__ = ["TaskScope", "tasks_app"]
