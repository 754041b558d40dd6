"""What the examples share: a small model, data of real lengths, the ways to run attention, and the race between these."""
