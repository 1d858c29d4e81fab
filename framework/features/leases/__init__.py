"""Exclusive leases of the application, and workers whose jobs hold one (``ReenqueuerWorker``)."""
