"""What is not collected: Flower's adapter has no doctest, and flwr may not be installed."""

collect_ignore = ["src/fedshift/federation/flower.py"]
