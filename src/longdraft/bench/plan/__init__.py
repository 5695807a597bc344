"""Predicts the gain of methods on a model, a machine and a context, from counts, without running
the model.
"""
