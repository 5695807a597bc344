"""What methods would gain on a model, a machine and a context: predicted from counts, without
running the model.
"""
