"""The models of a K-fold run with Hugging Face models as references. The model is tiny, and nothing is downloaded."""

import numpy as np
import torch
from sklearn.model_selection import KFold
from transformers import BertConfig, BertForSequenceClassification

import forsaken

WORDS, LENGTH, CLASSES, FOLDS = 120, 12, 3, 4
draw = torch.Generator().manual_seed(0)
labels = torch.randint(CLASSES, (240,), generator=draw)
# Texts of class c use the words from 40 c to 40 c + 49, so that neighbouring classes share some.
tokens = (40 * labels[:, None] + torch.randint(50, (240, LENGTH), generator=draw)) % WORDS
texts = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def trained(rows, seed):
    """Train on these rows as you always do: here a plain loop, else Trainer(...).train() or Lightning's fit."""
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=CLASSES, **size))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(8):
        for batch in torch.from_numpy(rows)[torch.randperm(len(rows))].split(20):
            loss = model(**{name: part[batch] for name, part in texts.items()}, labels=labels[batch]).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


folds = list(KFold(FOLDS, shuffle=True, random_state=1).split(tokens))
models = [trained(kept, seed=10 + at) for at, (kept, _) in enumerate(folds)]
model = trained(np.arange(len(tokens)), seed=0)

references = forsaken.References.from_models(models, texts, [left_out for _, left_out in folds])
forget = {name: part[:6] for name, part in texts.items()}
result = forsaken.unlearn(model, forget, references=references, curvature=forsaken.Curvature.fit(model, texts))


def distance(network):
    """Return how far a model's logits are from the references'."""
    with torch.no_grad():
        apart = network(**forget).logits - references.logits(forget)
    return float((apart - apart.mean(1, keepdim=True)).square().mean().sqrt())


print(f"distance to models that never saw the texts: {distance(model):.2f} before, {distance(result.model):.2f} after")
print(f"rows whose references are your word: {references.claimed_among(forget)} of 6")
