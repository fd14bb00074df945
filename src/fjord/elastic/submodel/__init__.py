"""The ways a submodel is built: from a module, from a traced graph, or on shared storage."""
