"""Publish a converted model on the Hugging Face Hub."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented

from convert.formats import hf_folder
from convert.layout import ConversionError


def check_name(name: str) -> None:
    """Check the name of a repository before the conversion starts."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConversionError(
            f"Expected a repository name such as organisation/name to push to, got {name}: {error}"
        ) from error


def push_folder(folder: Path, name: str) -> str:
    """Upload a model, and return the address of the commit.

    The token comes from `hf auth login` or HF_TOKEN. A missing repository is created. In an
    existing one, vocabularies, mixes and weights that the new model lacks are deleted.
    """
    api = HfApi()
    try:
        api.create_repo(name, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Add the converted model",
            delete_patterns=[x for x in hf_folder.OPTIONAL_FILES if not (folder / x).exists()],
        )
    except (HfHubHTTPError, OSError, RuntimeError, ValueError) as error:
        raise ConversionError(
            f"{folder}: the conversion succeeded, but the upload to {name} failed: {error}"
        ) from error
    return str(commit.commit_url)
