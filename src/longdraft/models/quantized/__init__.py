"""Safetensors checkpoints whose weights are quantized: read with the weights packed."""
