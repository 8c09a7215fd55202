"""Figures and pages made from results, never from data."""
