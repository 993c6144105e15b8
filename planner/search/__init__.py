"""Outer choices, their bounds, and the best-first search that keeps incumbent and bound.

Its constants say how much is looked at, in which order and how finely. They decide how soon a plan is found
and how near its bound comes, never whether a bound holds. Where no measurement stands beside one, it was
chosen so that the shipped problems take few seconds (`benchmarks/run.py`).
"""
