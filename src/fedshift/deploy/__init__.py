"""Deployments on Flower: task files, site files, keys, processes and runs on one machine.

A SuperLink is Flower's server process; a SuperNode is the process at a site. This package runs
Flower's commands and never imports Flower.
"""
