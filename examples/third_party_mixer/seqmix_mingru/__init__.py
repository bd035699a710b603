"""minGRU for seqmix. Nothing is imported here: seqmix finds each part by its entry point."""
