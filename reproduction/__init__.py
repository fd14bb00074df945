"""The paper, reproduced: the runs of each figure, and what they say about the paper's claims."""
