"""Models of pictures and sounds."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, SIDE = 3, 16


class DoubleConv(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(before, before // 2, 2, stride=2), DoubleConv(before, after)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        x1 = self.up(x1)
        diff_y, diff_x = x2.size()[2] - x1.size()[2], x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diff_x // 2, diff_x - diff_x // 2, diff_y // 2, diff_y - diff_y // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    """A class for each pixel."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inc = DoubleConv(1, width)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, 2 * width))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2 * width, 4 * width))
        self.up1, self.up2 = Up(4 * width, 2 * width), Up(2 * width, width)
        self.outc = nn.Conv2d(width, CLASSES, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        return self.outc(self.up2(self.up1(x3, x2), x1))


class Autoencoder(nn.Module):
    """A picture through a narrow place, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(True), nn.Conv2d(4, 8, 3, stride=2, padding=1)),
            *(nn.ReLU(True), nn.Flatten(), nn.Linear(8 * 4 * 4, 6)),
        )
        self.decoder = nn.Sequential(
            *(nn.Linear(6, 8 * 4 * 4), nn.ReLU(True), nn.Unflatten(1, (8, 4, 4))),
            *(
                nn.ConvTranspose2d(8, 4, 2, stride=2),
                nn.ReLU(True),
                nn.ConvTranspose2d(4, 1, 2, stride=2),
                nn.Sigmoid(),
            ),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class VAE(nn.Module):
    """A picture through chance, and back; with the mean and the spread of the chance."""

    def __init__(self, pixels: int = SIDE * SIDE, hidden: int = 12, latent: int = 4) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(pixels, hidden), nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.fc3, self.fc4 = nn.Linear(latent, hidden), nn.Linear(hidden, pixels)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.encode(x.view(x.size(0), -1))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def vae_loss(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    """The error of the picture, and the distance of the chance from a normal one."""
    recon, mu, logvar = outputs
    bce = F.binary_cross_entropy(recon, x.view(x.size(0), -1), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / x.size(0)


class AudioCNN(nn.Module):
    """A sound, by its spectrogram and convolutions."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.conv1, self.bn1 = nn.Conv1d(17, width, 5, padding=2), nn.BatchNorm1d(width)
        self.conv2, self.bn2 = nn.Conv1d(width, 2 * width, 3), nn.BatchNorm1d(2 * width)
        self.fc1 = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.stft(x.squeeze(1), n_fft=32, hop_length=8, window=self.window, return_complex=True)
        x = torch.log1p(spectrum.abs().pow(2))
        x = F.max_pool1d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool1d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)
        return self.fc1(x).squeeze(1)


class ConvBlock(nn.Module):
    def __init__(self, before: int, after: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = ConvBlock(width, width // 2, 1), ConvBlock(width // 2, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x))


class Detector(nn.Module):
    """Boxes at three sizes of cells, in YOLO's way: down, up again, and a head for each size."""

    def __init__(self, width: int = 4, anchors: int = 1) -> None:
        super().__init__()
        self.stem = ConvBlock(1, width, 3, 1)
        self.down1 = nn.Sequential(ConvBlock(width, width, 3, 2), Bottleneck(width))
        self.down2 = nn.Sequential(ConvBlock(width, 2 * width, 3, 2), Bottleneck(2 * width))
        self.down3 = nn.Sequential(ConvBlock(2 * width, 4 * width, 3, 2), Bottleneck(4 * width))
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.lat2, self.lat1 = ConvBlock(6 * width, 2 * width), ConvBlock(3 * width, width)
        self.heads = nn.ModuleList(
            nn.Conv2d(each, anchors * (5 + CLASSES), 1) for each in (width, 2 * width, 4 * width)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        p1 = self.down1(self.stem(x))
        p2 = self.down2(p1)
        p3 = self.down3(p2)
        p2 = self.lat2(torch.cat([self.upsample(p3), p2], 1))
        p1 = self.lat1(torch.cat([self.upsample(p2), p1], 1))
        return tuple(head(p).permute(0, 2, 3, 1).contiguous() for head, p in zip(self.heads, (p1, p2, p3), strict=True))


def detection_loss_of_parts(outputs: tuple[Tensor, ...], labels: tuple[Tensor, Tensor]) -> Tensor:
    """labels: the classes, (B, N), and the boxes, (B, N, 4)."""
    kinds, boxes = labels
    return detection_loss(outputs, torch.cat([kinds[..., None].to(boxes.dtype), boxes], 2))


def detection_loss(outputs: tuple[Tensor, ...], boxes: Tensor) -> Tensor:
    """boxes: (B, N, 5), each a class, or -1 for none, its centre, width and height between 0 and 1."""
    loss = boxes.new_zeros(())
    for output in outputs:
        cells = output.shape[1]
        wanted = torch.zeros(output.shape[:3])
        sample, which = (boxes[..., 0] >= 0).nonzero(as_tuple=True)
        box = boxes[sample, which]
        x, y = (box[:, 1:3] * cells).long().clamp(max=cells - 1).unbind(1)
        wanted[sample, y, x] = 1.0
        found = output[sample, y, x]
        loss = loss + F.binary_cross_entropy_with_logits(output[..., 4], wanted)
        if len(box):
            loss = (
                loss + F.mse_loss(found[:, :4].sigmoid(), box[:, 1:]) + F.cross_entropy(found[:, 5:], box[:, 0].long())
            )
    return loss
