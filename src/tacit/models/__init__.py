"""Models: priors, likelihoods and networks; they know nothing of privacy."""
