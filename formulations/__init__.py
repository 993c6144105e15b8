"""Mathematical formulations, one a file; the mathematics stands whole in each module's docstring."""
