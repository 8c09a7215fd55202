"""Tensors in, tensors out: the mathematics every other room stands on."""
