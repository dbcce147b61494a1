"""Token ids to batches: tokenised once, cut and ordered without state. Knows no model."""
