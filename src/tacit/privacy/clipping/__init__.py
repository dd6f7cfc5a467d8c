"""Clipping: bound how far one record can move a sum, by a reference and a fast exact way beside it.

``vmap(grad)``, which `jax_privacy` and the reference use, holds a gradient for each record: on two
cores a clipped sum over 256 records of a 784-1200-1200-10 network takes 2000 ms, against 12 ms of
the plain gradient. Book-keeping takes those 12 ms: it reads the norms off the program of any loss,
and never forms a gradient that it need not form (docs/clipping.md).
"""

from tacit.privacy.clipping.bounds import Flat, Normalised, PerLayer
from tacit.privacy.clipping.gradient import explain_clipping

__all__ = ["Flat", "Normalised", "PerLayer", "explain_clipping"]
