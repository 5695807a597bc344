"""Costs of passes: measured on this machine, read from a file, or counted."""
