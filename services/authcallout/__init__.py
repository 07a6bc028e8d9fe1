"""Tells the bus which node an agent runs on, from the token that only its kubelet can have given it."""
