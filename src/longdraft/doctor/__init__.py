"""Checks whether an installation is right, and why it is not faster.

It examines one part after the other, none of which loads a model.
"""
