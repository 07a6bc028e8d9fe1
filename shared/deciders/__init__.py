"""How a service decides: pure decide/evolve over a case log (`protocol`), and the runner that drives it (`runner`)."""
