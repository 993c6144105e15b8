"""The search over pipelines in which the data-parallel ranks of one stage lie on several node classes."""
