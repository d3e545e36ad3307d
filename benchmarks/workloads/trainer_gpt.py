"""Train a small GPT-2 of a configuration with the Trainer of Hugging Face, on random tokens."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(n_layer=3, n_embd=128, n_head=4, vocab_size=500, n_positions=128, bos_token_id=0, eos_token_id=0)
)
tokens = torch.randint(0, 500, (512, 64))
arguments = TrainingArguments(
    "out",
    max_steps=1_000_000,
    per_device_train_batch_size=8,
    logging_steps=50,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
)
Trainer(model, arguments, train_dataset=[{"input_ids": each, "labels": each} for each in tokens]).train()
