"""Records on disk: tables that are larger than memory."""
