"""Records from tables and images, under a public schema."""
