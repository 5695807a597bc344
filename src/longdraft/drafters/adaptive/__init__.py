"""Drafting that adapts to predicted costs and to what was accepted."""
