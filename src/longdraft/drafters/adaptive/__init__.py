"""Drafting that adapts to measured or counted costs."""
