"""Recipes, their runs, and the records of runs."""
