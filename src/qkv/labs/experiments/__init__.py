"""One file a lab."""
