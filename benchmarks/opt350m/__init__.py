"""OPT-350M on mixed A100 and V100 nodes: our plans beside other planners', under a published simulator.

`judge` is that simulator, `search` proves what its best plan is, `ordinary` lets Hetplan plan the same
clusters under its own referee and has the judge score the plan too.
"""
