"""Kernels for NVIDIA GPUs: CUDA C by way of TIR, with threads, shared memory and barriers."""
