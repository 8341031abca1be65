"""torchmetrics on the device: the common metrics of classification, regression and pictures."""

import torch
import torchmetrics
from cases import named, seed
from torchmetrics import classification as c
from torchmetrics import regression as r

METRICS = {
    "accuracy": (c.MulticlassAccuracy, {"num_classes": 4}, "classes"),
    "top two": (c.MulticlassAccuracy, {"num_classes": 4, "top_k": 2}, "classes"),
    "f1": (c.MulticlassF1Score, {"num_classes": 4}, "classes"),
    "precision": (c.MulticlassPrecision, {"num_classes": 4, "average": None}, "classes"),
    "recall": (c.MulticlassRecall, {"num_classes": 4, "average": "weighted"}, "classes"),
    "auroc": (c.MulticlassAUROC, {"num_classes": 4}, "classes"),
    "binned auroc": (c.MulticlassAUROC, {"num_classes": 4, "thresholds": 20}, "classes"),
    "average precision": (c.MulticlassAveragePrecision, {"num_classes": 4}, "classes"),
    "confusion": (c.MulticlassConfusionMatrix, {"num_classes": 4}, "classes"),
    "kappa": (c.MulticlassCohenKappa, {"num_classes": 4}, "classes"),
    "calibration": (c.MulticlassCalibrationError, {"num_classes": 4}, "classes"),
    "matthews": (c.MulticlassMatthewsCorrCoef, {"num_classes": 4}, "classes"),
    "jaccard": (c.MulticlassJaccardIndex, {"num_classes": 4}, "classes"),
    "exact match": (c.MultilabelExactMatch, {"num_labels": 4}, "labels"),
    "multilabel f1": (c.MultilabelF1Score, {"num_labels": 4}, "labels"),
    "binary auroc": (c.BinaryAUROC, {}, "binary"),
    "binary roc": (c.BinaryROC, {}, "binary"),
    "mse": (r.MeanSquaredError, {}, "numbers"),
    "mae": (r.MeanAbsoluteError, {}, "numbers"),
    "r2": (r.R2Score, {}, "numbers"),
    "pearson": (r.PearsonCorrCoef, {}, "numbers"),
    "spearman": (r.SpearmanCorrCoef, {}, "numbers"),
    "explained variance": (r.ExplainedVariance, {}, "numbers"),
    "cosine": (r.CosineSimilarity, {}, "rows"),
    "mean": (torchmetrics.MeanMetric, {}, "weights"),
    "ssim": (torchmetrics.image.StructuralSimilarityIndexMeasure, {}, "pictures"),
    "psnr": (torchmetrics.image.PeakSignalNoiseRatio, {"data_range": 1.0}, "pictures"),
    "perplexity": (torchmetrics.text.Perplexity, {}, "text"),
}


def batch(kind):
    """What a metric of this kind is updated with."""
    if kind == "classes":
        return torch.randn(20, 4).softmax(1), torch.randint(0, 4, (20,))
    if kind == "labels":
        return torch.rand(20, 4), torch.randint(0, 2, (20, 4))
    if kind == "binary":
        return torch.rand(20), torch.randint(0, 2, (20,))
    if kind == "numbers":
        return torch.randn(20), torch.randn(20)
    if kind == "rows":
        return torch.randn(20, 3), torch.randn(20, 3)
    if kind == "weights":
        return torch.randn(20), torch.rand(20)
    if kind == "text":
        return torch.randn(2, 8, 5), torch.randint(0, 5, (2, 8))
    return torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)


def _case(name, make, settings, kind):
    def run(device):
        seed(1)
        metric = make(**settings).to(device)
        steps = [metric(*(t.to(device) for t in batch(kind))) for _ in range(3)]
        values = [*steps, metric.compute()]
        return [v for value in values for v in (value if isinstance(value, tuple) else [value])]

    named(f"torchmetrics {name}")(run)


for _name, (_make, _settings, _kind) in METRICS.items():
    _case(_name, _make, _settings, _kind)
