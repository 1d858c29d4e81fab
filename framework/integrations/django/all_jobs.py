"""Set up Django and load the jobs of all installed apps. ``manage.py worker`` loads this module.

Other commands load it with ``-r``, and find the settings by ``DJANGO_SETTINGS_MODULE``:

    application-worker cluster '*' -r framework.integrations.django.all_jobs
"""

from importlib import import_module

import django
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

_BACKEND = "framework.integrations.django.tasks.ApplicationWorkerBackend"
_TASKS_MODULE = "tasks"

if not apps.ready:
    django.setup()

# Functions of django.tasks run here only where this backend is configured: other modules named tasks belong to other libraries.
_tasks = getattr(settings, "TASKS", {})
if any(backend.get("BACKEND") == _BACKEND for backend in _tasks.values()):
    autodiscover_modules(_TASKS_MODULE)
    import_module(_BACKEND.rpartition(".")[0]).use_queues_of_tasks()
