"""What a launcher, a model and a chip allow: one function a rule, with its source."""
