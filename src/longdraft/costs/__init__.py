"""The cost of a forward pass, by arithmetic: counts of its work, and named terms in seconds per
unit.
"""
