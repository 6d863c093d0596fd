"""The training in Lightning."""

import lightning
import torch
from net import Texts, make_net
from order import Order
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

EPOCHS, RATE = 3, 5e-3


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_net()

    def training_step(self, batch):
        values, labels = batch
        return cross_entropy(self.net(**values).logits, labels)

    def validation_step(self, batch):
        values, labels = batch
        right = (self.net(**values).logits.argmax(1) == labels).float().mean()
        self.log("accuracy", right, prog_bar=True, batch_size=len(labels))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


train_set = Texts("train.csv")
train = DataLoader(train_set, batch_size=32, sampler=Order(len(train_set)), drop_last=True)
test = DataLoader(Texts("test.csv"), batch_size=32)
classifier = Classifier()
trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(classifier, train, test)
print(f"accuracy {trainer.callback_metrics['accuracy']:.4f}")
torch.save(classifier.net.state_dict(), "net.pth")
