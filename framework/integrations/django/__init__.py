"""Run background jobs in a Django project: the app ``framework.integrations.django`` for ``INSTALLED_APPS``."""
