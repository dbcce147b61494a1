"""A classifier with the manners of scikit-learn."""
