"""Explains an answer: what binds, what more of anything would bring, and how to get a plan at all."""
