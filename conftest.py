"""What is not collected: modules that need Flower, which may not be installed; no doctests there."""

collect_ignore = ["src/fedshift/federation/flower.py", "src/fedshift/deploy/database.py"]
