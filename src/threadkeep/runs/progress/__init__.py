"""How far runs came: checkpoints, stored beside the runs as soon as a crash would cost more than a model call."""
