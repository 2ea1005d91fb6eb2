"""Next-character prediction."""

from torch import Tensor, nn


class CharLSTM(nn.Module):
    """Embedding 8, two LSTM layers of 256 units (times ``width``), dropout before the output. Feature: ``lstm``,
    the last hidden state."""

    def __init__(self, symbols: int, width: float = 1.0) -> None:
        super().__init__()
        units = max(1, round(256 * width))
        self.embedding = nn.Embedding(symbols, 8)
        self.lstm = nn.LSTM(8, units, num_layers=2, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.out = nn.Linear(units, symbols)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (batch, symbols) of the symbol after each window; ``x`` is int64 (batch, window)."""
        sequence, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.out(self.dropout(sequence[:, -1]))
        return scores
