"""Flower's processes on one machine: keys, SuperLink, SuperNodes, a run from start to end.

Flower itself is never imported here: its commands are run.
"""
