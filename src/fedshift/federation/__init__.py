"""Plans, and the engines that run them.

This file imports nothing, so that the process that forwards messages need not load torch.
"""
