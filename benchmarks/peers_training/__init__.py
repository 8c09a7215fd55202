"""Other simulators on the same work: five clients, one weighted gradient each, one server step.

A module of this package has ``PACKAGE`` (the distribution), and ``block(iterations)``, which runs
so many iterations and returns seconds for one, start-up left out. Modules are imported by
``_worker`` under an interpreter that has the peer, so this package needs torch and nothing else.
"""
