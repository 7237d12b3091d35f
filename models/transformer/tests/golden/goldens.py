"""What PyTorch's Transformer layers and timm's vision transformer compute on small inputs.

Writes lm_*.safetensors and vit_*.safetensors beside itself, for tests/transformer/golden.rs:

    pip install torch safetensors timm
    python goldens.py

A file holds `weights/…`, `input`, `target`, and of one pass with nothing dropped `logits`, `loss` (the mean
cross-entropy) and `grad/…`, by the names of the weights. Those are the names here, and so are shapes:
PyTorch's linear layers have their weights turned, and timm's convolution of patches is a linear layer.

For tests/transformer/weights.rs the weights of the vision transformers are also written as people have them,
with timm's names: vit_class_token.pt, timm_class_token.safetensors, and vit_mean.pt, a checkpoint of a
parallel training in the format of PyTorch before 1.6.
"""

import math
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).parent


def sinusoids(length: int, d: int) -> Tensor:
    """As in the annotated Transformer."""
    position = torch.arange(length).double().unsqueeze(1)
    rate = torch.exp(torch.arange(0, d, 2).double() * -(math.log(10000.0) / d))
    table = torch.zeros(length, d, dtype=torch.double)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table


class LanguageModel(nn.Module):
    """A stack of PyTorch's own layers between an embedding and a softmax."""

    def __init__(self, vocabulary, length, layers, d, heads, wide, learned, tied, causal):
        super().__init__()
        self.causal = causal
        self.tokens = nn.Embedding(vocabulary, d)
        self.positions = nn.Parameter(torch.randn(length, d)) if learned else None
        layer = lambda: nn.TransformerEncoderLayer(
            d, heads, wide, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.ModuleList(layer() for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length, d = tokens.shape[1], self.norm.weight.shape[0]
        x = self.tokens(tokens)
        if self.positions is None:
            x = x * math.sqrt(d) + sinusoids(length, d).to(x.dtype)
        else:
            x = x + self.positions[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True) if self.causal else block(x)
        return self.head(self.norm(x))


def names_of_language_model(name: str, layers: int) -> str:
    for theirs, ours in [
        ("self_attn.in_proj_", "attention.qkv."),
        ("self_attn.out_proj", "attention.output"),
        ("linear1", "mlp.inner"),
        ("linear2", "mlp.outer"),
        ("norm1", "norm_attention"),
        ("norm2", "norm_mlp"),
        ("tokens.weight", "0.tokens"),
        ("head.weight", f"{layers + 1}.tokens"),
    ]:
        name = name.replace(theirs, ours)
    if name == "positions":
        return "0.positions"
    if name.startswith("norm."):
        return f"{layers + 1}.{name}"
    return shifted(name)


def names_of_vision_transformer(name: str, layers: int) -> str:
    for theirs, ours in [
        ("attn.qkv", "attention.qkv"),
        ("attn.proj", "attention.output"),
        ("mlp.fc1", "mlp.inner"),
        ("mlp.fc2", "mlp.outer"),
        ("norm1", "norm_attention"),
        ("norm2", "norm_mlp"),
        ("cls_token", "0.class_token"),
        ("pos_embed", "0.positions"),
        ("patch_embed.proj", "0.patches"),
        ("fc_norm.", "norm."),
        ("head.", f"{layers + 1}.classes."),
    ]:
        name = name.replace(theirs, ours)
    if name.startswith("norm."):
        return f"{layers + 1}.{name}"
    return shifted(name)


def shifted(name: str) -> str:
    """Block i is layer i + 1."""
    if not name.startswith("blocks."):
        return name
    _, index, rest = name.split(".", 2)
    return f"{int(index) + 1}.{rest}"


def ours(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """A parameter by its name and shape here."""
    tensor = tensor.detach().clone()
    if name.endswith("patches.weight"):
        tensor = tensor.flatten(1)
    if tensor.dim() == 3:
        tensor = tensor[0]
    if name.endswith("class_token"):
        tensor = tensor[0]
    if "norm" in name:
        name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
    elif name.endswith(".weight"):
        tensor = tensor.T
    return name, tensor.contiguous()


def write(file: str, model: nn.Module, rename, x: Tensor, target: Tensor) -> None:
    for parameter in model.parameters():  # so that none is zero, or one
        nn.init.normal_(parameter, std=0.3)
    model.train()
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, -2), target.flatten())
    loss.backward()
    tensors = {"input": x, "target": target, "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        for prefix, tensor in [("weights", parameter), ("grad", parameter.grad)]:
            name_here, tensor = ours(rename(name), tensor)
            tensors[f"{prefix}/{name_here}"] = tensor
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, HERE / file)


def language_model(file: str, *, layers: int, learned: bool, tied: bool, causal: bool) -> None:
    torch.manual_seed(len(file))
    vocabulary, length = 23, 9
    model = LanguageModel(vocabulary, length, layers, 16, 4, 40, learned, tied, causal)
    x = torch.randint(vocabulary, (3, length - 1))
    target = torch.randint(vocabulary, (3, length - 1))
    write(file, model, lambda name: names_of_language_model(name, layers), x, target)


def vision_transformer(file: str, *, layers: int, mean: bool) -> None:
    torch.manual_seed(len(file))
    model = VisionTransformer(
        img_size=12, patch_size=4, in_chans=3, num_classes=5, embed_dim=24, depth=layers, num_heads=3,
        global_pool="avg" if mean else "token", class_token=not mean,
    )
    x, target = torch.randn(4, 3, 12, 12), torch.randint(5, (4,))
    write(file, model, lambda name: names_of_vision_transformer(name, layers), x, target)
    if mean:
        state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
        optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
        checkpoint = {"epoch": 7, "arch": "vit", "state_dict": state, "optimizer": optimizer}
        torch.save(checkpoint, HERE / "vit_mean.pt", _use_new_zipfile_serialization=False)
    else:
        torch.save(model.state_dict(), HERE / "vit_class_token.pt")
        save_file(model.state_dict(), HERE / "timm_class_token.safetensors", {"format": "pt"})


def main() -> None:
    print(f"torch {torch.__version__}, timm {timm.__version__}")
    language_model("lm_causal_tied_learned.safetensors", layers=3, learned=True, tied=True, causal=True)
    language_model("lm_causal_sinusoidal.safetensors", layers=2, learned=False, tied=False, causal=True)
    language_model("lm_both_ways.safetensors", layers=2, learned=True, tied=False, causal=False)
    vision_transformer("vit_class_token.safetensors", layers=2, mean=False)
    vision_transformer("vit_mean.safetensors", layers=2, mean=True)


if __name__ == "__main__":
    main()
