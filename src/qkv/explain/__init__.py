"""Why a model answered as it did, as plain data."""
