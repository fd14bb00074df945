"""The RNN of the Shakespeare task (appendix, datasets and models)."""

from torch import Tensor, nn


class CharacterRNN(nn.Module):
    """An embedding, two LSTM layers, and a score for every next character."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, x_bt: Tensor) -> Tensor:
        """Return scores (batch, time, vocabulary)."""
        embedded_bte = self.embedding(x_bt)
        states_bth, _ = self.lstm(embedded_bte)
        scores: Tensor = self.output(states_bth)
        return scores


def shakespeare_rnn(vocabulary: int = 90) -> nn.Module:
    """Return the paper's character model; freeze its embedding, which the paper keeps whole."""
    return CharacterRNN(vocabulary, 8, 128)
