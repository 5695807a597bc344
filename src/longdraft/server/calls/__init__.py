"""Reads and writes calls of functions and reasoning: one small class for each format.

The chat template shows which format a model uses.
"""
