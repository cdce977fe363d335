"""Convert the bundled model to bilm-tf's old HDF5 format, and convert the result back."""

import tempfile
from pathlib import Path

import h5py
import torch

from convert import convert_checkpoint
from hf_elmo import ElmoModel
from hf_elmo.bundled import resolve_name

bundled = Path(resolve_name("elmo-mini-en"))
with tempfile.TemporaryDirectory() as folder:
    weights, target = Path(folder, "weights.hdf5"), Path(folder, "my-elmo")
    convert_checkpoint(bundled, weights, to="bilm-hdf5")  # elmo-convert ... --to bilm-hdf5
    with h5py.File(weights) as file:
        print("in HDF5:", ", ".join(sorted(file)))
    convert_checkpoint(weights, target, weights_license="cc0-1.0")  # elmo-convert ...
    print("written:", ", ".join(sorted(path.name for path in target.iterdir())))

    old, new = ElmoModel.from_pretrained(bundled), ElmoModel.from_pretrained(target)
    pairs = zip(old.state_dict().values(), new.state_dict().values(), strict=True)
    print("the same weights:", all(torch.equal(a, b) for a, b in pairs))
