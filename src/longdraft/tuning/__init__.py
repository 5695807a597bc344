"""Where costs come from: measured on this machine, read from a file of an earlier measurement, or
counted.
"""
