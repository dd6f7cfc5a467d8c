"""Private Bayesian deep learning."""
