"""The private engine: sampling, clipping, noise, accounting; it knows nothing of Bayes."""
