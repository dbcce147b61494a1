"""Other programs' files: the only room that knows foreign names."""
