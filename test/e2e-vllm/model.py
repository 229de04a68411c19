"""Writes a two-layer model that vLLM starts with random weights (--load-format dummy), and a tokenizer of 512 entries."""
import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
stdlib = pathlib.Path(json.__file__).parent.parent
corpus = [p.read_text(errors="ignore") for p in sorted(stdlib.glob("*.py"))[:60]]
tokenizer.train_from_iterator(corpus, trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", model_max_length=4096)
fast.chat_template = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
fast.save_pretrained(out)

(out / "config.json").write_text(json.dumps({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": len(fast), "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "bos_token_id": fast.bos_token_id, "eos_token_id": fast.eos_token_id,
}, indent=1))
(out / "generation_config.json").write_text(json.dumps({"bos_token_id": fast.bos_token_id, "eos_token_id": fast.eos_token_id}))
print(f"model in {out}: {len(fast)} tokens")
