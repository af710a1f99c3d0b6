"""What carries runs out: a few verbs, on dbos in many processes, or in this one alone."""
