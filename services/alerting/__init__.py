"""Hears everybody and decides by rules what a person must know: one alert per cause, raised and resolved."""
