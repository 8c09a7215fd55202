"""fedshift as a Flower app."""
