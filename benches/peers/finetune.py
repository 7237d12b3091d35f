"""Fine-tunes a random Llama with `transformers` and `peft`, a mini-batch for each line that it reads.

First it prints one line of JSON: the numbers of all and of trained parameters and the versions, or what is missing. After
that it prints the seconds of each step, its loss and the peak memory in KiB: of the process, or what PyTorch has reserved
on a GPU. It ends with its input.
"""

import argparse
import json
import pathlib
import random
import sys
import time


def flags():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["vocabulary", "width", "blocks", "heads", "keys", "feed-forward", "length", "rank", "threads"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", type=json.loads, required=True, help="of each sequence of a mini-batch")
    parser.add_argument("--micro-batch", type=int, required=True, help="sequences")
    return parser.parse_args()


def made(args):
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        intermediate_size=args.feed_forward,
        num_hidden_layers=args.blocks,
        num_attention_heads=args.heads,
        num_key_value_heads=args.keys,
        max_position_embeddings=args.length,
        tie_word_embeddings=True,
        use_cache=False,
    )
    lora = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(LlamaForCausalLM(config), lora).train()


def padded(sequences, device):
    """Tokens, labels and the mask of a micro-batch, padded at the end."""
    import torch

    longest = max(map(len, sequences))
    tokens = torch.tensor([sequence + [0] * (longest - len(sequence)) for sequence in sequences], device=device)
    mask = [[1] * len(sequence) + [0] * (longest - len(sequence)) for sequence in sequences]
    mask = torch.tensor(mask, device=device)
    return tokens, tokens.masked_fill(mask == 0, -100), mask


def peak(device):
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_reserved(device) // 1024
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def main():
    args = flags()
    try:
        import peft
        import torch
        import transformers
    except ImportError as error:
        return print(json.dumps({"missing": str(error)}), flush=True)
    torch.set_num_threads(args.threads)
    model = made(args).to(args.device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    count = lambda parameters: sum(parameter.numel() for parameter in parameters)
    versions = f"{transformers.__version__}, peft {peft.__version__}, PyTorch {torch.__version__}"
    hello = {"parameters": count(model.parameters()), "trained": count(trained), "versions": versions}
    print(json.dumps(hello), flush=True)
    optimizer = torch.optim.AdamW(trained, 1e-6, fused=True)
    drawn = random.Random(0)
    sequences = [[(7 * place + sample) % args.vocabulary for place in range(n)] for sample, n in enumerate(args.lengths)]
    for _ in sys.stdin:
        drawn.shuffle(sequences)
        began = time.perf_counter()
        weight = sum(len(sequence) - 1 for sequence in sequences)
        total = 0.0
        for first in range(0, len(sequences), args.micro_batch):
            tokens, labels, mask = padded(sequences[first : first + args.micro_batch], args.device)
            loss = model(tokens, attention_mask=mask, labels=labels, num_items_in_batch=weight).loss
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.device.startswith("cuda"):
            torch.cuda.synchronize()
        print(time.perf_counter() - began, total, peak(args.device), flush=True)


if __name__ == "__main__":
    main()
