"""A repository of the Hugging Face Hub, to which a run is uploaded in one commit.

repository = Repository("user/ppo-CartPole-v1", private=True)
repository.check()
repository.commit(folder, "Upload of a run")
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from levada._version import __version__
from levada.flow.errors import LevadaError
from levada.run.display.printable import printable
from levada.run.storage.checkpoint import FOLDER as CHECKPOINTS
from levada.run.storage.directory import CONFIG, METRICS, SUMMARY

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD: Final = "README.md"
REPORT: Final = "report.html"
CURVE: Final = "learning_curve.png"
_OWN: Final = frozenset({CONFIG, SUMMARY, METRICS, REPORT, CURVE})
_ALSO_OWN: Final = re.compile(rf"policy(-[^/]+)?\.onnx|{CHECKPOINTS}/.+")
"""Files of an earlier upload, which are removed if the new one has no such file."""
_OF_THE_HUB: Final = (".gitattributes", CARD, "LICENSE")
"""Files that a repository may have before a run is uploaded to it."""
_MOST_CHARS: Final = 300
_LOGIN: Final = "log in with `hf auth login`, or set HF_TOKEN to a token with write access"


class HubError(LevadaError, ValueError):
    """A run cannot be uploaded to the Hugging Face Hub."""


def check_installed() -> None:
    """Check that the Hub's library is installed.

    Raises:
        HubError: it is not.
    """
    if find_spec("huggingface_hub") is None:
        msg = "push needs huggingface_hub: pip install 'levada[hub]'"
        raise HubError(msg)


def check_repo_id(repo_id: str) -> None:
    """Check the name of a repository.

    Raises:
        HubError: it is not `user/name`, or has characters that the Hub does not allow.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, and not in an __all__

    expected = "expected user/name, such as user/ppo-CartPole-v1"
    if not isinstance(repo_id, str):
        msg = f"push: repo_id is a {type(repo_id).__name__}, {expected}"
        raise HubError(msg)
    why = "it has no user or organization" if "/" not in repo_id else ""
    if "://" in repo_id:
        why = "it is a URL"
    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        why = why or "the Hub allows letters, digits, '-', '_' and '.' in a name, and 96 characters"
    if why:
        msg = f"{repo_id!r} is no name of a repository: {why}; {expected}"
        raise HubError(msg)


class Repository:
    """A repository of models."""

    def __init__(self, repo_id: str, *, private: bool) -> None:
        """`private`: make it private if it does not exist."""
        self.repo_id = repo_id
        self._private = private
        self._exists = False

    def check(self) -> None:
        """Check, before anything is computed, that the run can be uploaded.

        Raises:
            HubError: there is no token, the Hub cannot be reached, or the repository holds other files or is public.
        """
        from huggingface_hub import get_token
        from huggingface_hub.errors import RepositoryNotFoundError

        if get_token() is None:
            msg = f"there is no token for the Hugging Face Hub: {_LOGIN}"
            raise HubError(msg)
        with self._calling("looked up"):
            try:
                info = _api().model_info(self.repo_id)
            except RepositoryNotFoundError:  # it is made by `commit`
                return
        self._exists = True
        if self._private and not info.private:
            msg = f"{self.repo_id} exists and is public, and is not made private; give another name, or make it private first"
            raise HubError(msg)
        names = [file.rfilename for file in info.siblings or () if file.rfilename not in _OF_THE_HUB]
        if names and CONFIG not in names:
            listed = printable(", ".join(sorted(names)[:3])) + (", ..." if len(names) > 3 else "")
            msg = f"{self.repo_id} holds other files than a run ({listed}): nothing is overwritten; give another name"
            raise HubError(msg)

    def commit(self, folder: Path, names: Sequence[str], message: str) -> str:
        """Upload files in one commit, and return its hash. Files of an earlier upload go; other files stay.

        Args:
            folder: directory with the files.
            names: their names in it.
            message: message of the commit.

        Raises:
            HubError: the upload failed.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete

        api = _api()
        with self._calling("uploaded"):
            if not self._exists:
                api.create_repo(self.repo_id, private=self._private or None, exist_ok=True)
            there = api.list_repo_files(self.repo_id)
            gone = [name for name in there if name not in names and (name in _OWN or _ALSO_OWN.fullmatch(name))]
            operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
                *(CommitOperationDelete(name) for name in gone),
                *(CommitOperationAdd(name, folder / name) for name in names),
            ]
            return str(api.create_commit(self.repo_id, operations, commit_message=message).oid)

    @property
    def url(self) -> str:
        """Address of its page."""
        return f"{_api().endpoint}/{self.repo_id}"

    @contextlib.contextmanager
    def _calling(self, done: str) -> Iterator[None]:
        """Turn errors of the Hub and of the network into HubError."""
        from huggingface_hub.errors import HfHubHTTPError

        try:
            yield
        except Exception as error:  # the library raises errors of its own and of two others for the network
            status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
            said = " ".join(printable(str(error)).split())[:_MOST_CHARS]
            why = {
                401: f"the token is not valid: {_LOGIN}",
                403: f"the token does not allow it: {_LOGIN}, and give a user or an organization of yours",
            }.get(status or 0, f"{type(error).__name__}: {said}")
            msg = f"{self.repo_id} cannot be {done}: {why}"
            raise HubError(msg) from error


def _api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(library_name="levada", library_version=__version__)
