"""`qkv train TABLE`: from a table to a recipe, with the baselines that say what the model is worth."""
