"""When things happen in a run: the warm-up, blocks of real steps, and epochs, all counted in real steps."""

from typing import NamedTuple


class Schedule(NamedTuple):
    """Warm-up, then blocks. `step` is the number of real steps taken so far, warm-up included."""

    warmup_steps: int
    block_steps: int
    """Real steps per block: between two fits of the model, and between two rows of progress.csv."""
    epoch_steps: int
    """Real steps per epoch, the unit of rollout lengths and of AMPO's steps."""

    def after_warmup(self, step: int) -> int:
        """Return the steps taken after the warm-up, the paper's count; negative inside the warm-up."""
        return step - self.warmup_steps

    def in_warmup(self, step: int) -> bool:
        """Say whether the next step still belongs to the warm-up."""
        return step < self.warmup_steps

    def at_boundary(self, step: int) -> bool:
        """Say whether the warm-up or a block has just ended, so that the next block begins."""
        after = self.after_warmup(step)
        return after >= 0 and after % self.block_steps == 0

    def block(self, step: int) -> int:
        """Return the number of the block that the next step belongs to; the warm-up is block 0."""
        return 0 if self.in_warmup(step) else 1 + self.after_warmup(step) // self.block_steps

    def blocks(self, step: int) -> int:
        """Return how many blocks have ended after the warm-up."""
        return max(self.after_warmup(step), 0) // self.block_steps

    def steps_of_block(self, step: int) -> int:
        """Return how many steps the newest block has so far; at the end of the warm-up, those of the warm-up."""
        after = self.after_warmup(step)
        return (after - 1) % self.block_steps + 1 if after else self.warmup_steps

    def epoch(self, step: int) -> int:
        """Return the number of the epoch, counted from the end of the warm-up."""
        return self.after_warmup(step) // self.epoch_steps

    def starts_epoch(self, step: int) -> bool:
        """Say whether the next step is the first of an epoch."""
        return self.after_warmup(step) % self.epoch_steps == 0
