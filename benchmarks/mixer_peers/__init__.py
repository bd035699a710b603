"""Other implementations of mixers, as contestants of ``mixers_peers.py``."""
