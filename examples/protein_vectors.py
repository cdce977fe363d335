"""Vectors of proteins by SeqVec (Heinzinger et al. 2019), an ELMo whose words are residues.

Run `elmo-convert seqvec/uniref50 seqvec` to download and convert SeqVec. Then run
`python examples/protein_vectors.py seqvec proteins.fasta`. Without arguments, the script prints the
shapes for a small random model and two short proteins.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.inference.embedding import embed

FASTA = """>insulin, chain A
GIVEQCCTSICSLYQLENYCN
>insulin, chain B
FVNQHLCGSHLVEALYLVCGERGFFYTPKT
"""


def read_fasta(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each protein, and the list of its residues."""
    name, residues = "", list[str]()
    for line in [*lines, ">"]:
        if line.startswith(">"):
            if residues:
                yield name, residues
            name, residues = line[1:].strip(), []
        else:
            residues += "".join(line.split()).upper().rstrip("*").replace("-", "")


if sys.argv[1:]:
    model = ElmoModel.from_pretrained(sys.argv[1]).eval()
    tokenizer = ElmoTokenizer.from_pretrained(sys.argv[1])
    lines = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
else:
    torch.manual_seed(0)
    filters = [[1, 4], [2, 4]]
    model = ElmoModel(ElmoConfig(char_filters=filters, cell_size=32, projection_size=8)).eval()
    tokenizer, lines = ElmoTokenizer(), FASTA.splitlines()

names, proteins = zip(*read_fasta(lines), strict=True)
for name, residues, layers in zip(
    names, proteins, embed(proteins, model, tokenizer, layers="all"), strict=True
):
    vectors = layers.sum(axis=0)  # (residues, width), for tasks on each residue
    protein = vectors.mean(axis=0)  # (width,), for tasks on the whole protein
    print(f"{name}: {len(residues)} residues", vectors.shape, protein.shape)
