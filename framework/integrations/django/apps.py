"""Configure the app: load the jobs of all installed apps, and connect the framework with Django's databases."""

from django.apps import AppConfig
from django.core.checks import register
from django.utils.module_loading import autodiscover_modules

from framework import middleware
from framework.command_line import use_manage_py
from framework.integrations.django import commit_hooks
from framework.integrations.django.configuration_check import check_configuration
from framework.integrations.django.connections import CloseConnections

JOBS_MODULE = "jobs"
"""The module of an installed app that has its worker classes."""


class ApplicationWorkerConfig(AppConfig):
    """The app of background jobs. It opens no connection to Redis."""

    name = "framework.integrations.django"
    label = "application_worker"
    verbose_name = "Background jobs"

    def ready(self) -> None:
        """Import the module ``jobs`` of each installed app that has one. Errors of such a module reach the caller."""
        use_manage_py()
        middleware.server.prepend(CloseConnections)
        commit_hooks.install()
        register(check_configuration)
        autodiscover_modules(JOBS_MODULE)
