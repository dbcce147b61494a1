"""A run folder: written atomically, hashed, verified by every reader."""
