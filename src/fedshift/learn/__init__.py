"""Models, normalisation and augmentation, grouped layers, evaluation."""
