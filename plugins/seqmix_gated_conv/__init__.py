"""Gated convolutions and their relatives: convolutions, state spaces, RWKV, linear attention.

The mixers of *Zoology* (Arora et al. 2023) and of the works that it compares. Each is registered
under its name; nothing is exported here.
"""
