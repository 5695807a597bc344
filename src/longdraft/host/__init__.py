"""This machine and this installation, as the system describes them: measures nothing, and does not
import torch.
"""
