"""Privacy: sampling, clipping, noise, accounting; it knows nothing of Bayes."""
