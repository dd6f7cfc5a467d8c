"""What privacy costs in time and memory, measured against plain training and against peers."""
