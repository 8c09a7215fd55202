"""Defence against hostile or broken clients: updates, ratios, shared rows, statistics and sums."""
