"""The tacit command: one thin module per verb."""
