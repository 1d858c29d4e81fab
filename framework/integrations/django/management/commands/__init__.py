"""Hold the commands of ``manage.py``."""
