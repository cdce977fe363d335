"""The small English model that ships with the package."""

import warnings
from pathlib import Path

BUNDLED_NAME = "elmo-mini-en"


def resolve_name(name: str) -> str:
    """Turn the bundled model's name into its folder; leave every other name as it is.

    Args:
        name: `"elmo-mini-en"`, a folder, or a name on the Hugging Face Hub.

    Returns:
        A folder or a name for `from_pretrained`.

    Raises:
        FileNotFoundError: If the name is the bundled model's and this installation lacks the model.
    """
    if name != BUNDLED_NAME:
        return name
    if Path(name, "config.json").is_file():
        warnings.warn(
            f"{name!r} is the bundled model, although there is a folder of this name. To use that, "
            f"write './{name}'.",
            stacklevel=2,
        )
    folder = Path(__file__).parent / BUNDLED_NAME
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"This installation holds no bundled model {BUNDLED_NAME!r}. Name a model's folder or "
            "its name on the Hugging Face Hub instead."
        )
    return str(folder)
