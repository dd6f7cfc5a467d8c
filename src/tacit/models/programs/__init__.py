"""NumPyro programs: taken apart into what may see a record and what may not."""
