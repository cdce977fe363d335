"""What a user names is fetched: published models by name, addresses, names on the Hub."""

import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from bilm_tf import WORDS, evaluate, make_bilm, run_model, write_bilm
from file_server import FileServer
from old_checkpoints import make_many_langs, write_allennlp, write_many_langs, write_nlpl
from tensorflow_checkpoint import module_variables, write_trained, write_variables
from typer.testing import CliRunner

from convert import ConversionError, convert_checkpoint
from convert.__main__ import app
from convert.catalogue import Published, read_catalogue
from convert.fetch import download
from hf_elmo import ElmoForPreTraining

SENTENCE = ["the", "naïve", "bank"]
MODELS = {name: model for name, model in read_catalogue().items() if model.format}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return tmp_path / "cache"


# --- Published models ---


def kind_of(model: Published) -> tuple[str, ...]:
    """Tell how a model is laid out, by its format and the ends of its addresses."""
    files = [item[0].partition("?")[0].rpartition("/")[2] for item in model.files]
    suffixes = (".zip", ".tar.gz", ".tar.bz2", ".hdf5", ".th", ".json", "checkpoint")
    ends = [next((end for end in suffixes if name.endswith(end)), "") for name in files]
    return (model.format, *ends, "options" * bool(model.options), "words" * bool(model.vocabulary))


KINDS = {kind_of(model): name for name, model in reversed(MODELS.items())}


def write_layout(model: Published, folder: Path) -> None:
    """Write a tiny model with all its files, in the folders of the published one."""
    bilm = make_bilm(cell_clip=3, proj_clip=3, max_characters=50)
    if model.format == "softmax":
        folder.mkdir()
        with h5py.File(folder / "softmax_weights.hdf5", "w") as file:
            file["softmax/W"], file["softmax/b"] = np.ones((len(WORDS), 4)), np.ones(len(WORDS))
    elif model.name.startswith("embeddia/"):
        folder.mkdir()
        weights = write_bilm(folder / "croatian", bilm)
        weights.rename(weights.with_name("croatian-elmo-weights.hdf5"))
    elif model.format == "bilm-hdf5":
        write_bilm(folder, bilm)
    elif model.format == "nlpl":
        write_nlpl(folder, bilm)
    elif model.format == "many-langs":
        write_many_langs(folder, make_many_langs())
    elif model.format == "allennlp":
        write_allennlp(folder, bilm)
        (folder / "options.json").unlink()  # as published
    elif model.name == "t-systems/german-tf":
        write_bilm(folder, bilm)
        write_trained(folder, bilm)
    elif model.name.startswith("tfhub/"):
        write_variables(folder / "variables/variables", module_variables(bilm, "module/bilm/"))
    else:
        prefix = write_trained(folder, bilm)
        if model.name.endswith("-lm"):
            (folder / "saves").mkdir()
            for path in folder.glob(f"{prefix.name}.*"):
                path.rename(folder / "saves" / path.name)


def list_files(model: Published, folder: Path) -> dict[str, bytes]:
    """List what is downloaded of a model in place of each of its files, by name."""
    end = kind_of(model)[1]
    is_archive = end in (".zip", ".tar.gz", ".tar.bz2") or model.name.startswith("tfhub/")
    if is_archive or model.name == "t-systems/german-tf":
        kind = {".zip": "zip", ".tar.bz2": "bztar"}.get(end, "gztar")
        data = Path(shutil.make_archive(f"{folder}-packed", kind, folder)).read_bytes()
        if is_archive:
            return {f"packed{end}": data}
        size = len(data) // 4 + 1
        return {f"x.tgz.part-0{i}": data[i * size : (i + 1) * size] for i in range(4)}
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return {
        name: data
        for name, data in files.items()
        if name not in ("options.json", "vocab.txt")
        and (len(model.files) > 1 or name.endswith((".hdf5", ".th")))
    }


def publish(name: str, folder: Path, server: FileServer) -> Published:
    """Put a tiny model of a published one's layout on the server; its first addresses are gone."""
    model = MODELS[name]
    write_layout(model, folder)

    def put(key: str, data: bytes) -> tuple[str, str]:
        return f"{server.url}/gone/{key}", server.put(f"/{name}/download?of={key}", data, name=key)

    options = json.dumps(make_bilm(cell_clip=3, proj_clip=3, max_characters=50).options).encode()
    words = "".join(f"{word}\n" for word in WORDS).encode()
    return replace(
        model,
        files=tuple(put(key, data) for key, data in list_files(model, folder).items()),
        options=put("options.json", options) if model.options else (),
        vocabulary=put("vocab.txt", words) if model.vocabulary else (),
    )


@pytest.fixture
def publish_locally(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Return what makes published models be those of the server."""

    def publish_all(*names: str) -> None:
        local = {name: publish(name, tmp_path / name.replace("/", "-"), server) for name in names}
        monkeypatch.setattr("convert.catalogue.read_catalogue", lambda: local)

    return publish_all


@pytest.mark.filterwarnings("ignore:.*found no options")  # where there are no options
@pytest.mark.parametrize(
    "name",
    [*(name for kind, name in KINDS.items() if kind[0] != "softmax"), "deeppavlov/ru-wiki-lm"],
)
def test_every_layout_of_the_catalogue_converts_by_name(
    name: str, publish_locally: Callable[..., None], tmp_path: Path
) -> None:
    publish_locally(name)
    conversion = convert_checkpoint(name, tmp_path / "model")
    assert (conversion.format, conversion.source) == (MODELS[name].format, name)
    assert np.isfinite(run_model(tmp_path / "model", SENTENCE)).all()
    card = (tmp_path / "model/README.md").read_text(encoding="utf-8")
    assert f"Converted from `{name}`" in card
    assert f"Licence as stated by the publisher: {MODELS[name].licence}." in card
    citation = MODELS[name].citation
    assert (f"Please cite: {citation}." in card) == bool(citation)


def test_the_model_is_the_published_one(
    publish_locally: Callable[..., None], tmp_path: Path
) -> None:
    publish_locally("seqvec/uniref50")
    convert_checkpoint("seqvec/uniref50", tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    bilm = make_bilm(cell_clip=3, proj_clip=3, max_characters=50)
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCE), atol=1e-5, rtol=0)


def test_a_published_softmax_makes_a_language_model(
    publish_locally: Callable[..., None], tmp_path: Path
) -> None:
    publish_locally("allenai/original", "allenai/original-softmax")
    convert_checkpoint("allenai/original", tmp_path / "model", softmax="allenai/original-softmax")
    assert ElmoForPreTraining.from_pretrained(tmp_path / "model").config.vocab_size == len(WORDS)
    with pytest.raises(ConversionError, match="is a softmax"):
        convert_checkpoint("allenai/original-softmax", tmp_path / "other")


def test_a_published_softmax_brings_its_vocabulary(
    publish_locally: Callable[..., None], tmp_path: Path
) -> None:
    publish_locally("allenai/original-softmax")
    weights = write_bilm(tmp_path / "mine", make_bilm())
    convert_checkpoint(weights, tmp_path / "model", softmax="allenai/original-softmax")
    assert ElmoForPreTraining.from_pretrained(tmp_path / "model").config.vocab_size == len(WORDS)


def test_a_softmax_here_gets_the_vocabulary_of_the_published_model(
    publish_locally: Callable[..., None], tmp_path: Path
) -> None:
    publish_locally("allenai/original")
    write_layout(MODELS["allenai/original-softmax"], tmp_path / "mine")
    softmax = tmp_path / "mine/softmax_weights.hdf5"
    convert_checkpoint("allenai/original", tmp_path / "model", softmax=softmax)
    assert ElmoForPreTraining.from_pretrained(tmp_path / "model").config.vocab_size == len(WORDS)


def test_a_vocabulary_is_downloaded_only_if_the_model_has_a_softmax(
    publish_locally: Callable[..., None], server: FileServer, tmp_path: Path
) -> None:
    publish_locally("allenai/original", "allenai/original-tf")
    convert_checkpoint("allenai/original", tmp_path / "model")
    assert not any("vocab" in request for request in server.requests)
    convert_checkpoint("allenai/original-tf", tmp_path / "language-model")
    assert any("vocab" in request for request in server.requests)


def test_the_licence_goes_into_the_card_where_the_makers_state_one(
    publish_locally: Callable[..., None], tmp_path: Path
) -> None:
    publish_locally("deeppavlov/ru-wiki-lm", "allenai/small")
    for name in ("deeppavlov/ru-wiki-lm", "allenai/small"):
        convert_checkpoint(name, tmp_path / Path(name).name)
    cards = [
        (tmp_path / name / "README.md").read_text(encoding="utf-8")
        for name in ("ru-wiki-lm", "small")
    ]
    assert "license: apache-2.0" in cards[0]
    assert "license:" not in cards[1]
    assert ("- ru\n" in cards[0], "- en\n" in cards[1]) == (True, True)


def test_a_vocabulary_that_the_user_names_is_not_downloaded(
    publish_locally: Callable[..., None], server: FileServer, tmp_path: Path
) -> None:
    publish_locally("allenai/original", "allenai/original-softmax")
    words = [{"bank": "shore"}.get(word, word) for word in WORDS]
    vocabulary = tmp_path / "mine.txt"
    vocabulary.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    files = {"softmax": "allenai/original-softmax", "vocabulary": vocabulary}
    convert_checkpoint("allenai/original", tmp_path / "model", **files)
    assert "shore" in (tmp_path / "model" / "target_vocab.txt").read_text("utf-8").split()
    assert not any("vocab" in request for request in server.requests)


def test_options_that_the_user_names_are_not_downloaded(
    publish_locally: Callable[..., None], server: FileServer, tmp_path: Path
) -> None:
    publish_locally("allenai/small")
    options = tmp_path / "mine.json"
    options.write_text(json.dumps(make_bilm(max_characters=20).options))
    conversion = convert_checkpoint("allenai/small", tmp_path / "model", options=options)
    assert conversion.config.max_characters_per_token == 20
    assert not any("options" in request for request in server.requests)


def test_a_second_conversion_downloads_nothing(
    publish_locally: Callable[..., None], server: FileServer, tmp_path: Path
) -> None:
    publish_locally("allenai/small")
    convert_checkpoint("allenai/small", tmp_path / "model")
    count = len(server.requests)
    convert_checkpoint("allenai/small", tmp_path / "again", dtype="float16")
    assert len(server.requests) == count


def test_a_folder_of_the_same_name_goes_first(
    publish_locally: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "allenai").mkdir()
    write_bilm(tmp_path / "allenai/small", make_bilm())
    convert_checkpoint("allenai/small", tmp_path / "model")
    assert 'max_characters_per_token": 10' in (tmp_path / "model/config.json").read_text()


# --- Addresses ---


def test_any_address_is_a_source(server: FileServer, tmp_path: Path) -> None:
    bilm = make_bilm()
    weights = write_bilm(tmp_path / "source", bilm)
    address = server.put("/x/weights.hdf5", weights.read_bytes())
    options = server.put("/y/options.json", json.dumps(bilm.options).encode())
    conversion = convert_checkpoint(address, tmp_path / "model", options=options)
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCE), atol=1e-5, rtol=0)
    assert conversion.source == address

    signed = server.put("/x/weights.hdf5?token=T0P", weights.read_bytes())
    secret = signed.replace("://", "://alice:S3CRET@")
    convert_checkpoint(secret, tmp_path / "again", options=options)
    card = (tmp_path / "again/README.md").read_text(encoding="utf-8")
    assert "/x/weights.hdf5` (format bilm-hdf5)" in card
    assert not any(x in card for x in ("alice", "S3CRET", "T0P"))


def test_a_download_that_breaks_begins_again(
    server: FileServer, cache: Path, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 100
    address = server.put("/weights.hdf5", data, breaks_at=1000)
    with pytest.raises(ConversionError, match=r"weights.hdf5: .*IncompleteRead"):
        download([address])
    assert not [path for path in cache.rglob("*") if path.is_file()]
    server.put("/weights.hdf5", data)
    for _ in range(2):
        assert download([address]).read_bytes() == data
    assert len(server.requests) == 2


def test_a_web_page_is_not_a_model(server: FileServer, tmp_path: Path) -> None:
    address = server.put("/login", b"<!DOCTYPE html><title>Sign in</title>")
    result = CliRunner().invoke(app, [address, str(tmp_path / "model")])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"Error: {address}: this is a web page, not a model.")
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}


def test_a_file_name_of_a_server_stays_in_the_cache(server: FileServer, cache: Path) -> None:
    address = server.put("/x", b"data", name="../../../evil")
    path = download([address])
    assert path.name == "evil"
    assert cache in path.parents


def test_nothing_is_downloaded_offline(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConversionError, match="not in the cache, and HF_HUB_OFFLINE is set"):
        download([server.put("/x", b"data")])
    assert server.requests == []


# --- Archives ---


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_nothing_is_unpacked_outside(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"packed.{kind}"
    if kind == "tar":
        with tarfile.open(path, "w") as file:
            file.addfile(tarfile.TarInfo("../../evil"))
    else:
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("../../evil", b"")
    result = CliRunner().invoke(app, [str(path), str(tmp_path / "model")])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name}


@pytest.mark.parametrize("kind", ["zip", "gztar", "bztar", "xztar"])
def test_a_cut_archive_is_one_line(kind: str, tmp_path: Path) -> None:
    write_bilm(tmp_path / "source", make_bilm())
    path = Path(shutil.make_archive(str(tmp_path / "packed"), kind, tmp_path / "source"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    result = CliRunner().invoke(app, [str(path), str(tmp_path / "model")])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("Error: ")
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, "source"}


# --- The Hub ---


@pytest.mark.parametrize("revision", ["v1", None])
def test_hub_name_is_downloaded(
    revision: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_bilm(tmp_path / "snapshot", make_bilm()).parent
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda name, **others: asked.append((name, others["revision"])) or str(folder),
    )
    options = ["--revision", revision] if revision else []
    result = CliRunner().invoke(app, ["someone/elmo", str(tmp_path / "model"), *options])
    assert (result.exit_code, asked) == (0, [("someone/elmo", revision)])


def test_an_unknown_name_gets_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, **_: Any) -> str:
        raise OSError("no such repository")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ConversionError, match=r"no such repository Did you mean allenai/original"):
        convert_checkpoint("allenai/orignal", tmp_path / "model")
    with pytest.raises(ConversionError, match=r"a/b/c: found no file, folder, published"):
        convert_checkpoint("a/b/c", tmp_path / "model")
