"""The search over pipelines of different shape side by side."""
