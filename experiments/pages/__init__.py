"""The parts of the results page: for each paper, what was measured beside what it says."""
