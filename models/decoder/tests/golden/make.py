"""What `transformers` and `peft` compute with tiny random decoders and LoRA adapters of them.

    pip install -r requirements.txt
    python make.py
    python make.py check FOLDER ADAPTER GOLDEN

The first way writes, beside this script, a folder for each of llama, mistral, qwen2 and qwen3, with:

- the model and its `config.json`, by `save_pretrained`, and for some `config.v4.json`: the same configuration as
  transformers 4 wrote it;
- `golden.safetensors`: `tokens` (sequences padded at the right with token 0), their `lengths`, `targets` (-100 where
  there is none), `logits` (0 at padding), `loss` (the mean over targets), `grad/…` of it for each parameter, and
  `greedy`: the new tokens that follow the first few of the first sequence, whatever token ends a text;
- `adapter/`, by `save_pretrained` of peft, with a `golden.safetensors` of the same, in which `grad/…` are those of the
  adapter, and `merged/…` the weights that it changes, after merging.

All is computed in single precision from the weights as saved. A nearly tied choice of a greedy token, or a gradient
near zero, would depend on rounding: the seed of a model is the first without.

The second way loads FOLDER, and the adapter in the folder ADAPTER unless that is `none`, as anyone would, and compares
its logits to those in the folder GOLDEN. It prints one line, and fails if they differ.
"""

import json
import os
import shutil
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
VOCABULARY = 67
LENGTHS = [23, 17, 1]
# How many tokens of the first sequence are a prompt whose tokens are no targets.
PROMPT = 5
GREEDY_PROMPT, GREEDY_NEW = 6, 20
NO_TARGET = -100
# By how much the logit of a greedy token must exceed the next, and how many different ones there must be.
LEAST_LEAD, LEAST_DIFFERENT = 1e-2, 6
# The least norm of a gradient.
LEAST_GRADIENT = 1e-3
# How far from the golden logits others may be, as a fraction of the largest.
TOLERANCE = 1e-4

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
# The wavelengths are 6.3, 13, 28 and 59 tokens: those below 8 are kept, those above 32 stretched, others in between.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 20.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS = {
    "llama": {
        "config": {
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "rope_parameters": LLAMA3_ROPE,
            "attention_bias": True,
            "mlp_bias": True,
        },
        "dtype": torch.float32,
        "rope_v4": {
            "rope_theta": 20.0,
            "rope_scaling": {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"},
        },
        "lora": {"target_modules": "all-linear"},
    },
    "mistral": {
        "config": {
            "num_key_value_heads": 1,
            "head_dim": 16,
            "sliding_window": None,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
        "dtype": torch.bfloat16,
        "shard": "16KB",
        # `type` is what versions before 4.43 called `rope_type`.
        "rope_v4": {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        "lora": {"target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    },
    "qwen2": {
        "config": {"num_key_value_heads": 2, "rms_norm_eps": 1e-6},
        "dtype": torch.float32,
        "lora": {
            "target_modules": ["q_proj", "down_proj"],
            "layers_to_transform": [1],
            "rank_pattern": {"layers.1.mlp.down_proj": 2},
            "alpha_pattern": {"down_proj": 3},
        },
    },
    "qwen3": {
        "config": {
            "num_key_value_heads": 2,
            "head_dim": 12,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        "dtype": torch.float16,
        "lora": {"target_modules": "all-linear"},
    },
}


def load(folder: Path | str, **options) -> nn.Module:
    """The model in single precision, of which the file must hold everything and nothing else."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, **options
    )
    wrong = {what: sorted(map(str, names)) for what, names in info.items() if names}
    if wrong:
        sys.exit(f"{folder}: {wrong}")
    return model.eval()


def draw_model(name: str) -> None:
    """Saves a model in which nothing is trivial: norms and biases are drawn too."""
    about = MODELS[name]
    config = AutoConfig.for_model(name, **COMMON, **about["config"])
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 0.2)
    model.to(about["dtype"]).save_pretrained(name, max_shard_size=about.get("shard", "1GB"))


def draw_adapter(name: str) -> None:
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, task_type="CAUSAL_LM", **MODELS[name]["lora"])
    model = get_peft_model(load(name), config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.15)
    folder = Path(name) / "adapter"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    # The order of a set differs from run to run.
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def draw_batch() -> dict[str, Tensor]:
    lengths = torch.tensor(LENGTHS)
    places = torch.arange(max(LENGTHS))
    tokens = torch.randint(1, VOCABULARY, (len(LENGTHS), max(LENGTHS)))
    tokens[places >= lengths[:, None]] = 0
    targets = tokens.roll(-1, dims=1)
    targets[places >= lengths[:, None] - 1] = NO_TARGET
    targets[0, :PROMPT] = NO_TARGET
    return {"tokens": tokens, "lengths": lengths, "targets": targets}


def logits_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    tokens = batch["tokens"]
    mask = torch.arange(tokens.shape[1]) < batch["lengths"][:, None]
    logits = model(input_ids=tokens, attention_mask=mask.long()).logits
    return logits.masked_fill(~mask[..., None], 0)


@torch.no_grad()
def greedy(model: nn.Module, prompt: Tensor) -> tuple[Tensor, float]:
    """The new tokens, and the least lead of one of them over the next best."""
    tokens, lead = prompt[None], float("inf")
    for _ in range(GREEDY_NEW):
        best = model(input_ids=tokens).logits[0, -1].topk(2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        tokens = torch.cat([tokens, best.indices[None, :1]], dim=1)
    new = tokens[0, len(prompt) :]
    generated = model.generate(
        input_ids=prompt[None],
        attention_mask=torch.ones_like(prompt[None]),
        max_new_tokens=GREEDY_NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert torch.equal(generated, tokens), "generate chooses other tokens"
    return new, lead


def compute(model: nn.Module, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """What is golden of a model or an adapted one, and whether it is independent of rounding."""
    logits = logits_of(model, batch)
    loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=NO_TARGET)
    names, parameters = zip(*((name, p) for name, p in model.named_parameters() if p.requires_grad))
    gradients = torch.autograd.grad(loss, parameters)
    new, lead = greedy(model, batch["tokens"][0, :GREEDY_PROMPT])
    least, different = min(gradient.norm().item() for gradient in gradients), len(new.unique())
    print(f"  loss {loss.item():.3f}, least gradient {least:.1e}, greedy {different} tokens with a lead of {lead:.1e}")
    tensors = batch | {"logits": logits.detach(), "loss": loss.detach(), "greedy": new}
    tensors |= {f"grad/{name.replace('.default', '')}": g for name, g in zip(names, gradients)}
    return tensors, least >= LEAST_GRADIENT and lead >= LEAST_LEAD and different >= LEAST_DIFFERENT


def merged(model: PeftModel) -> dict[str, Tensor]:
    base = load(model.peft_config["default"].base_model_name_or_path).state_dict()
    state = model.merge_and_unload().state_dict()
    return {f"merged/{name}": tensor for name, tensor in state.items() if not torch.equal(tensor, base[name])}


def write_config_v4(name: str, batch: dict[str, Tensor], logits: Tensor) -> None:
    config = json.loads((Path(name) / "config.json").read_text())
    del config["rope_parameters"]
    config |= MODELS[name]["rope_v4"] | {"torch_dtype": config.pop("dtype"), "transformers_version": "4.40.0"}
    path = Path(name) / "config.v4.json"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    model = load(name, config=AutoConfig.from_pretrained(path), attn_implementation="eager")
    assert torch.equal(logits_of(model, batch), logits), "both configurations are the same"


def save(tensors: dict[str, Tensor], folder: Path, seed: int) -> None:
    # Only one entry: the order of several differs from run to run.
    about = {"made by": f"torch {torch.__version__}, transformers {transformers.__version__}, seed {seed}"}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "golden.safetensors", about)


def make(name: str, seed: int) -> bool:
    """Whether the seed is fit; if not, what it has written is to be written again."""
    print(f"{name}: seed {seed}")
    folder = Path(name)
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    batch = draw_batch()
    draw_model(name)
    model = load(name, attn_implementation="eager")
    tensors, fit = compute(model, batch)
    if not fit:
        return False
    save(tensors, folder, seed)
    if "rope_v4" in MODELS[name]:
        write_config_v4(name, batch, tensors["logits"].detach())
    draw_adapter(name)
    base = load(name, attn_implementation="eager")
    adapted = PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).eval()
    tensors, fit = compute(adapted, batch)
    save(tensors | merged(adapted), folder / "adapter", seed)
    return fit


def check(folder: str, adapter: str, golden: str) -> None:
    model = load(folder)
    if adapter != "none":
        model = PeftModel.from_pretrained(model, adapter).eval()
        names = load_file(Path(adapter) / "adapter_model.safetensors").keys()
        if wrong := sorted(names ^ get_peft_model_state_dict(model).keys()):
            sys.exit(f"{adapter}: missing or unexpected {wrong}")
    tensors = load_file(Path(golden) / "golden.safetensors")
    with torch.no_grad():
        apart = (logits_of(model, tensors) - tensors["logits"]).abs().max() / tensors["logits"].abs().max()
    # Not a number is no agreement.
    same = bool(apart <= TOLERANCE)
    print(f"{folder}, adapter {adapter}: {'as' if same else 'DIFFERS from'} {golden}, {apart:.1e} of the largest apart")
    sys.exit(0 if same else 1)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    match sys.argv[1:]:
        case ["check", folder, adapter, golden]:
            check(folder, adapter, golden)
        case []:
            # For an adapter to name its model by a path that is the same everywhere.
            os.chdir(HERE)
            for name in MODELS:
                seed = 0
                while not make(name, seed):
                    seed += 1
            files = [path for name in MODELS for path in Path(name).rglob("*") if path.is_file()]
            print(f"{len(files)} files, {sum(path.stat().st_size for path in files)} bytes")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
