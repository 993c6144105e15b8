"""Shares of the batch that whole pipelines may run side by side: a knapsack over what each gains.

At prices of chips at which all of them are worth the batch, a pipeline gains the sequences that it runs less
what its chips are worth. Together the pipelines of a mix run the batch on no more chips than there are, so
that their gains are 0 or more in all. A share that no such mix has is closed.

Sets       n in 1 .. S-1                 shares of the batch [sequences]
Data       g[n]          gains           most that a pipeline of share n gains; -inf where none is [sequences]
           S                             sequences of a step
Asked      for each k                    max sum_n g[n] y[n] over whole y >= 0 with y[k] >= 1,
                                         sum_n n y[n] = S and two pipelines or more
Recursion  B[n] = max(g[n], max_j g[j] + B[n-j])         most that one or more pipelines gain that run n
           g[k] + B[S-k]                                 what is asked; `most_beside` gives the second term
Size       S states, S^2 / 2 transitions.
Exact      yes, by dynamic programming.
Leaves out which chips the pipelines of different share take: they may be of classes that are short.
Source     unbounded knapsack: S. Martello, P. Toth, "Knapsack Problems", Wiley 1990, chapter 3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def most_beside(gains: Floats) -> Floats:
    """What the pipelines beside one of each share gain at most, -inf where none can be, [n].

    Parameters
    ----------
    gains
        [n] for n = 0 .. S; those of 0 and S are not looked at.
    """
    batch = len(gains) - 1
    together = np.full(batch + 1, -np.inf)
    for n in range(1, batch):
        others = gains[1:n] + together[n - 1 : 0 : -1]
        together[n] = max(float(gains[n]), float(others.max(initial=-np.inf)))
    beside = np.full(batch + 1, -np.inf)
    beside[1:batch] = together[batch - 1 : 0 : -1]
    return beside
