"""What a forward pass costs, by arithmetic: counts of its work, and named terms in seconds per
unit.
"""
