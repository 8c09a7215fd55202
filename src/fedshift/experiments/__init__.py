"""Recipes, the runs they make and the records those leave."""
