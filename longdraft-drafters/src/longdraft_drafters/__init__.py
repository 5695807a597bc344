"""Drafters as data: MODEL/KIND holds one for a model that `longdraft fetch` knows. longdraft finds
them by itself.
"""
