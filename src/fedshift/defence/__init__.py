"""Checks of what clients send: updates (`robust`), ratios (`ratios`) and shared rows (`pool`)."""
