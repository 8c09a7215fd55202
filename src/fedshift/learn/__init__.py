"""Models, BatchNorm policies, losses, augmentation, evaluation, no-harm test and forecast."""
