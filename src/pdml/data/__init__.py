"""Where transitions live: the replay buffer, the model buffer, and how minibatches are drawn."""
