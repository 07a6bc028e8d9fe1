"""How a service decides: pure decide/evolve over a case log (`protocol`), driven over the bus (`runner`)."""

from shared.deciders.folds import Outdated
from shared.deciders.protocol import Decider, Effect, Hands
from shared.deciders.runner import Runner

__all__ = ["Decider", "Effect", "Hands", "Outdated", "Runner"]
