"""Libraries for pictures: torchvision, timm, kornia, MONAI, segmentation, metric learning."""

from pictures import torchvision  # isort: skip

import kornia
import kornia.augmentation as augmentation
import monai
import segmentation_models_pytorch as segmentation
import timm
import torch
from cases import case, on_device, seed, train
from pytorch_metric_learning import losses, miners
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.transforms import v2

STEPS = 3
BATCH = 4


def digits(count=BATCH * STEPS, size=32):
    """Pictures of three channels, and their labels."""
    found = load_digits()
    pictures = torch.tensor(found.images[:count], dtype=torch.float32)[:, None] / 16
    pictures = nn.functional.interpolate(pictures, size=(size, size))
    return pictures.expand(-1, 3, -1, -1).contiguous(), torch.tensor(found.target[:count])


def batches(device, pictures, labels):
    """The pictures in batches on the device."""
    return [
        (x.to(device), y.to(device))
        for x, y in zip(pictures.split(BATCH), labels.split(BATCH), strict=True)
    ]


def trained(net, device, loss=cross_entropy, data=None):
    """Three steps of SGD with momentum; the trained net, and losses, parameters and state."""
    net = net.to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)
    seed(7)
    with on_device(device):
        told = train(
            net, optimizer, lambda x, y: loss(net(x), y), data or batches(device, *digits())
        )
    return net, told


@case
def torchvision_models(device):
    """A residual and a mobile net, trained, then asked."""
    told = []
    for name in ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5"):
        seed(1)
        net, more = trained(torchvision.models.get_model(name, num_classes=10), device)
        net.eval()
        with torch.no_grad():
            told += [*more, net(digits(2)[0].to(device))]
    return told


@case
def torchvision_boxes_and_transforms(device):
    """What is done to pictures and boxes on the device."""
    pictures, _ = digits(4)
    chain = v2.Compose(
        [v2.Resize(24), v2.CenterCrop(20), v2.ConvertImageDtype(torch.float32),
         v2.Normalize([0.5] * 3, [0.25] * 3), v2.Grayscale(3)]
    )  # fmt: skip
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [5, 5, 20, 20], [0, 0, 3, 3]])
    boxes = boxes.to(device)
    ops = torchvision.ops
    rolled = torchvision.transforms.functional.rotate(pictures.to(device), 30.0)
    return [
        chain(pictures.to(device)), rolled, ops.box_iou(boxes, boxes), ops.box_area(boxes),
        ops.generalized_box_iou(boxes, boxes), ops.sigmoid_focal_loss(boxes, boxes.gt(4).float()),
        torchvision.utils.make_grid(pictures.to(device), nrow=2),
        v2.functional.gaussian_blur(pictures.to(device), [3, 3], [1.0, 1.0]),
    ]  # fmt: skip


@case
def timm_models(device):
    """A vision transformer, a convolutional net and timm's optimizer and scheduler."""
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    told = []
    for name, options in (
        ("vit_tiny_patch16_224", {"img_size": 32, "depth": 2}),
        ("convnext_atto", {}),
        ("efficientnet_b0", {}),
    ):
        seed(2)
        net = timm.create_model(name, num_classes=10, **options).to(device).train()
        optimizer = create_optimizer_v2(net, "adamw", lr=1e-3, weight_decay=0.05)
        scheduler = CosineLRScheduler(optimizer, t_initial=3)
        smooth = LabelSmoothingCrossEntropy()
        seed(3)
        with on_device(device):
            told += train(
                net, optimizer, lambda x, y, net=net, smooth=smooth: smooth(net(x), y),
                batches(device, *digits()),
            )  # fmt: skip
        scheduler.step(1)
        told.append(optimizer.param_groups[0]["lr"])
    return told


@case
def kornia_filters_and_geometry(device):
    """Blurs, edges, colours, warps, with gradients."""
    pictures = digits(2)[0].to(device).requires_grad_()
    turned = kornia.geometry.transform.rotate(pictures, torch.tensor([30.0, -45.0], device=device))
    found = [
        kornia.filters.gaussian_blur2d(pictures, (3, 3), (1.0, 1.0)),
        kornia.filters.sobel(pictures),
        kornia.filters.canny(pictures.detach())[0],
        kornia.color.rgb_to_hsv(pictures.detach()),
        kornia.color.rgb_to_lab(pictures),
        kornia.geometry.transform.resize(pictures, (20, 24)),
        kornia.enhance.equalize(pictures.detach()),
        kornia.morphology.dilation(pictures, torch.ones(3, 3, device=device)),
        kornia.losses.ssim_loss(pictures, pictures.detach().flip(-1), 5),
        turned,
    ]
    sum(each.pow(2).mean() for each in found if each.requires_grad).backward()
    return [*found, pictures.grad]


@case
def kornia_augmentation(device):
    """Augmentations whose chance is drawn on the host, applied on the device."""
    chain = augmentation.AugmentationSequential(
        augmentation.RandomHorizontalFlip(p=0.5),
        augmentation.RandomAffine(20.0, p=1.0),
        augmentation.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0),
        data_keys=["input"],
    )
    return [chain(digits(4)[0].to(device))]


@case
def monai_segmentation(device):
    """A U-Net with Dice loss, its metric, and sliding windows."""
    seed(4)
    net = monai.networks.nets.UNet(
        spatial_dims=2, in_channels=3, out_channels=2, channels=(4, 8, 16), strides=(2, 2)
    )
    loss = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
    pictures, _ = digits()
    masks = (pictures[:, :1] > 0.4).float()
    net, told = trained(net, device, loss, batches(device, pictures, masks))
    net.eval()
    metric = monai.metrics.DiceMetric(include_background=False)
    with torch.no_grad():
        out = monai.inferers.sliding_window_inference(pictures[:2].to(device), (16, 16), 2, net)
        hot = monai.networks.one_hot(out.argmax(1, keepdim=True), 2)
        metric(hot, monai.networks.one_hot(masks[:2].to(device), 2))
    return [*told, out, metric.aggregate()]


@case
def segmentation_models(device):
    """A U-Net and a feature pyramid over a residual encoder, with the library's losses."""
    pictures, _ = digits(size=32)
    masks = (pictures[:, :1] > 0.4).float()
    told = []
    for make in (segmentation.Unet, segmentation.FPN):
        seed(5)
        net = make("resnet18", encoder_weights=None, in_channels=3, classes=1)
        loss = segmentation.losses.DiceLoss("binary", from_logits=True)
        net, more = trained(net, device, loss, batches(device, pictures, masks))
        out = net.eval()(pictures[:2].to(device)).detach()
        counts = segmentation.metrics.get_stats(
            out.sigmoid(), masks[:2].long().to(device), mode="binary", threshold=0.5
        )
        told += [*more, out, *counts, segmentation.metrics.iou_score(*counts, reduction="micro")]
    return told


@case
def metric_learning(device):
    """Triplets and proxies: losses, miners and the accuracy of neighbours."""
    told = []
    for make, mine in (
        (lambda: losses.TripletMarginLoss(), miners.MultiSimilarityMiner()),
        (lambda: losses.NTXentLoss(), None),
        (lambda: losses.ArcFaceLoss(10, 8), None),
    ):
        seed(6)
        net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8)).to(device)
        loss = make().to(device)
        optimizer = torch.optim.Adam([*net.parameters(), *loss.parameters()], 1e-2)
        for x, y in batches(device, *digits(24, 16)):
            optimizer.zero_grad()
            out = net(x)
            value = loss(out, y, mine(out, y)) if mine else loss(out, y)
            value.backward()
            optimizer.step()
            told.append(value)
        told += list(net.parameters())
    return told
