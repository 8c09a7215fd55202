"""What is not collected: modules that need Flower, which may be missing; no doctests in them."""

collect_ignore = ["src/fedshift/federation/flower.py", "src/fedshift/deploy/database.py"]
