"""Models whose layers are of several kinds in any order: which runs of layers each stage holds."""
