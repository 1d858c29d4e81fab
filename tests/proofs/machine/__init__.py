"""Simulate whole worker processes in one, their threads moved one at a time, so that every interleaving can be chosen
and repeated.
"""
