"""Pictures of a policy at work: videos by Gymnasium's recorder, and strips of frames for reports."""

import io
import os
import sys
import warnings
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from pdml.config.files import read_config
from pdml.core.errors import UserError

if TYPE_CHECKING:
    from pdml.config.schema import Settings
    from pdml.runs.saved_policy import SavedPolicy

FRAMES = 8
"""Frames of a strip."""


class NoRendererError(UserError):
    """No renderer works on this machine."""


def rendering_env(settings: "Settings", **kwargs: Any) -> gymnasium.Env:
    """Make the environment of a run so that it renders, without a display where there is none.

    Where nothing can render, say in one line what is missing. Must be called before anything imports MuJoCo, which
    chooses its renderer at import.
    """
    config, timeout = settings.learning, settings.run.env_timeout
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        from pdml.envs.gym import make_env

        env = make_env(config.env, config.max_episode_steps, timeout, render_mode="rgb_array", **kwargs)
        env.reset(seed=0)
        env.render()
    except Exception as error:  # whatever the graphics library raises, now or while the environment is made
        reason = error.__cause__ if isinstance(error, UserError) else error
        if reason is None:
            raise
        kind = os.environ.get("MUJOCO_GL", "default")
        raise NoRendererError(
            f"nothing can render here (MUJOCO_GL={kind}: {type(reason).__name__}); "
            "install a renderer, e.g. apt-get install libegl1, or set MUJOCO_GL"
        ) from None
    return env


def record(path: Path, episodes: int, out: Path, seed: int | None = None, which: str = "last") -> list[Path]:
    """Write a video of each episode of a run's last policy, or of its best one."""
    if find_spec("moviepy") is None:
        raise UserError("videos need moviepy: pip install 'pdml[video]' (in a checkout, '.[video]')")
    with closing(rendering_env(read_config(path / "config.json"))) as env:
        from pdml.core.rng import Purpose, env_seed
        from pdml.runs.saved_policy import load_policy

        policy = load_policy(path, which)
        name = f"step_{policy.step:08d}"
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"out = '{out}': cannot be written ({error.strerror})") from None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Overwriting existing videos")  # of other steps
            recorder = gymnasium.wrappers.RecordVideo(
                env, str(out), episode_trigger=lambda number: True, name_prefix=name, disable_logger=True
            )
        chosen = policy.settings.learning.seed if seed is None else seed
        with closing(recorder):
            for number in range(episodes):
                _play(recorder, policy, env_seed(chosen, Purpose.EVALUATION, policy.step, number))
    return [out / f"{name}-episode-{number}.mp4" for number in range(episodes)]


def _play(env: gymnasium.Env, policy: "SavedPolicy", seed: int) -> list[np.ndarray]:
    """Play an episode; return its actions."""
    obs, _ = env.reset(seed=seed)
    actions, ended = [], False
    while not ended:
        actions.append(policy.mode(np.asarray(obs, np.float32)[None])[0])
        obs, _, terminated, truncated, _ = env.step(actions[-1])
        ended = terminated or truncated
    return actions


def strip(path: Path, frames: int = FRAMES, width: int = 200, height: int = 150) -> tuple[bytes, int]:
    """Return a JPEG of a few frames, side by side, of one episode of a run's last policy, and its width.

    The episode is played twice: to know how long it is, and to render the moments that are shown.
    """
    with closing(rendering_env(read_config(path / "config.json"), width=width, height=height)) as env:
        from PIL import Image

        from pdml.core.rng import Purpose, env_seed
        from pdml.runs.saved_policy import load_policy

        policy = load_policy(path)
        start = env_seed(policy.settings.learning.seed, Purpose.EVALUATION, policy.step, 0)
        actions = _play(env, policy, start)
        wanted = set(np.linspace(0, len(actions), frames).round().astype(int).tolist())
        env.reset(seed=start)
        seen = [env.render()]
        for time, action in enumerate(actions, start=1):
            env.step(action)
            if time in wanted:
                seen.append(env.render())
    picture = np.concatenate([np.array(frame).astype(np.uint8) for frame in seen], axis=1)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=80)
    return file.getvalue(), picture.shape[1]
