"""Whether an installation is right, and why it is not faster: one part after the other, none of
which loads a model.
"""
