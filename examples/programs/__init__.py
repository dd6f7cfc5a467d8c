"""NumPyro programs fitted privately: ``python -m examples.programs.logistic_regression``."""
