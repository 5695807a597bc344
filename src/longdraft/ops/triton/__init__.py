"""The operations of `ops` on a GPU.

Triton kernels, the functions that launch them, and a check before first use.
"""
