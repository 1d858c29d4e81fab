"""Enrol the products of a seller: one job per product, all in one task that the seller's page shows.

The application calls ``offers.load(seller, path)`` with the seller's file and pushes one ``EnrolProductWorker`` per SKU in a task
(``framework.tasks``). ``task.failures()`` then says which products failed, and why.
"""
