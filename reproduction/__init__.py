"""The paper, reproduced: which runs each figure is made of, running them, and what they say of the paper's claims."""
