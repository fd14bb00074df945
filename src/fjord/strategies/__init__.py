"""What composes with any method: server optimizers, FedNova, SCAFFOLD (FedProx is a term of local training)."""
