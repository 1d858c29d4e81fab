"""Serve the metrics of a process that pushes jobs to Prometheus (extra ``prometheus``).

    from framework.metrics import asgi_app, wsgi_app

    app.mount("/metrics", asgi_app())                                # FastAPI, Starlette

    application = DispatcherMiddleware(application, {"/metrics": wsgi_app()})    # Flask

``metrics_text(accept)`` returns the text and its content type, for a view of your own. The process counts from the first call of one
of them on. With the setting ``metrics.directory`` each process of the server answers for all of them.

Worker processes and clusters answer ``/metrics`` themselves.
"""

from framework.features.observability.producer import asgi_app, metrics_text, wsgi_app

__all__ = ["asgi_app", "metrics_text", "wsgi_app"]
