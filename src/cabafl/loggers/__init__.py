"""Listeners that take the figures of a run: TensorBoard, MLflow, Weights & Biases, or the user's own class."""
