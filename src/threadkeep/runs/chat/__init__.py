"""The chat as its callers have it: a message in, an answer out, each turn a run or, in an outage, told without one."""
