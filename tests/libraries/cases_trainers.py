"""Loops that others wrote: transformers' Trainer, Lightning, accelerate, skorch."""

import logging
import os
import tempfile
import warnings

import numpy as np
import torch
from cases import case, on_device, seed, state_of
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = 48
BATCH = 8


def data():
    """Points in three heaps."""
    seed(1)
    labels = torch.arange(EXAMPLES) % 3
    return torch.randn(EXAMPLES, 6) + labels[:, None], labels


class Network(nn.Module):
    """Small, with something random in it, which is the device's own."""

    def __init__(self, device):
        super().__init__()
        seed(2)
        self.device_name = device
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))

    def forward(self, x):
        """Logits."""
        with on_device(self.device_name):
            return self.layers(x)


@case
def transformers_trainer(device):
    """Trainer, which uses accelerate: scheduler, clipping, evaluation."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    seed(3)
    net = BertForSequenceClassification(
        BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                   intermediate_size=48, max_position_embeddings=32, num_labels=3,
                   hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )  # fmt: skip
    ids = torch.randint(5, 60, (EXAMPLES, 10))
    rows = [{"input_ids": row, "labels": row[0] % 3} for row in ids]
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory, per_device_train_batch_size=BATCH, max_steps=8, learning_rate=1e-3,
            logging_steps=2, report_to=[], use_cpu=device == "cpu", seed=5, save_strategy="steps",
            save_steps=4, disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Trainer(net, arguments, train_dataset=rows, eval_dataset=rows)
        assert trainer.args.device.type == device
        done = trainer.train()
        told = trainer.evaluate()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return [*losses, done.training_loss, told["eval_loss"], *state_of(net)]


@case
def lightning(device):
    """A LightningModule with metrics, a scheduler and a checkpoint."""
    import lightning as L
    from torchmetrics.classification import MulticlassAccuracy

    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Lit(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Network(device)
            self.accuracy = MulticlassAccuracy(3)
            self.losses = []

        def training_step(self, batch, _):
            loss = cross_entropy(self.net(batch[0]), batch[1])
            self.losses.append(loss.detach())
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, _):
            self.accuracy(self.net(batch[0]), batch[1])
            self.log("accuracy", self.accuracy)

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), 1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]

    module = Lit()
    loader = DataLoader(TensorDataset(*data()), BATCH)
    with tempfile.TemporaryDirectory() as directory:
        trainer = L.Trainer(
            accelerator="gpu" if device == "cuda" else "cpu", devices=1, max_epochs=2,
            default_root_dir=directory, logger=False, enable_progress_bar=False,
            enable_model_summary=False, gradient_clip_val=1.0,
        )  # fmt: skip
        seed(4)
        trainer.fit(module, loader, loader)
        kept = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
    told = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return [*module.losses, told["accuracy"], told["loss"], *state_of(module), kept["global_step"]]


@case
def accelerate_loop(device):
    """accelerate's prepare, accumulate, clip and gather."""
    from accelerate import Accelerator

    os.environ.setdefault("ACCELERATE_DISABLE_RICH", "1")
    accelerator = Accelerator(cpu=device == "cpu", gradient_accumulation_steps=2)
    assert accelerator.device.type == device
    net = Network(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    loader = DataLoader(TensorDataset(*data()), BATCH)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    losses = []
    seed(4)
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(net):
                loss = cross_entropy(net(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()))
    return [*losses, *state_of(accelerator.unwrap_model(net))]


@case
def skorch_classifier(device):
    """skorch's classifier: fit, predict, score."""
    from skorch import NeuralNetClassifier

    x, y = (t.numpy() for t in data())
    classifier = NeuralNetClassifier(
        Network(device), criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, lr=1e-2,
        max_epochs=4, batch_size=BATCH, device=device, verbose=0,
    )  # fmt: skip
    seed(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier.fit(x.astype(np.float32), y)
    predicted = classifier.predict(x.astype(np.float32))
    history = [row["train_loss"] for row in classifier.history]
    valid = [row["valid_loss"] for row in classifier.history]
    return [*history, *valid, *predicted.tolist(), *state_of(classifier.module_)]
