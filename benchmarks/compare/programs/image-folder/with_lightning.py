"""The training in Lightning."""

import lightning
import torch
from net import make_net, pictures
from order import Order
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

EPOCHS, RATE = 3, 3e-3


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_net(10)

    def training_step(self, batch):
        values, labels = batch
        return cross_entropy(self.net(values), labels)

    def validation_step(self, batch):
        values, labels = batch
        right = (self.net(values).argmax(1) == labels).float().mean()
        self.log("accuracy", right, prog_bar=True, batch_size=len(labels))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


train_set = pictures("digits/train")
train = DataLoader(train_set, batch_size=32, sampler=Order(len(train_set)), drop_last=True)
test = DataLoader(pictures("digits/test"), batch_size=32)
digits = Digits()
trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(digits, train, test)
print(f"accuracy {trainer.callback_metrics['accuracy']:.4f}")
torch.save(digits.net.state_dict(), "net.pth")
