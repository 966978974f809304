"""Text models of transformers that train.py builds with random weights.

Why it exists: the sizes of published models are data, and take more lines than the job that trains them.
"""

TEXT = {
    "bert-base": (
        "BertConfig",
        "BertForMaskedLM",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
    ),
    "bert-large": (
        "BertConfig",
        "BertForMaskedLM",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "gpt2-medium": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-large": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "qwen2-1.5b": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {
            "hidden_size": 1536,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "intermediate_size": 8960,
            "tie_word_embeddings": True,
        },
    ),
    "t5-base": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "d_model": 768,
            "num_layers": 12,
            "num_heads": 12,
            "d_ff": 3072,
            "decoder_start_token_id": 0,
        },
    ),
    "t5-small-gated": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "d_model": 512,
            "num_layers": 8,
            "num_heads": 8,
            "d_ff": 1024,
            "feed_forward_proj": "gated-gelu",
            "decoder_start_token_id": 0,
        },
    ),
    "llama-3.2-1b": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 8192,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
        },
    ),
    "gemma2-2b": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {
            "hidden_size": 2304,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 9216,
            "head_dim": 256,
        },
    ),
    "opt-1.3b": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "ffn_dim": 8192,
            "word_embed_proj_dim": 2048,
        },
    ),
    "phi-2": (
        "PhiConfig",
        "PhiForCausalLM",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 10240,
            "partial_rotary_factor": 0.4,
        },
    ),
    "phi-1.5": (
        "PhiConfig",
        "PhiForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "intermediate_size": 8192,
        },
    ),
    "phi-3-mini-8": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            "hidden_size": 3072,
            "num_hidden_layers": 8,
            "num_attention_heads": 32,
            "intermediate_size": 8192,
            "pad_token_id": 0,
        },
    ),
    "llama-3.2-3b-8": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "hidden_size": 3072,
            "num_hidden_layers": 8,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "intermediate_size": 8192,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2.5-3b-10": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 10,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "intermediate_size": 11008,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-4b-6": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 6,
            "head_dim": 128,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 9728,
            "tie_word_embeddings": True,
        },
    ),
    "gemma-2b-8": (
        "GemmaConfig",
        "GemmaForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "intermediate_size": 16384,
            "head_dim": 256,
        },
    ),
    "gemma2-9b-3": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {
            "hidden_size": 3584,
            "num_hidden_layers": 3,
            "head_dim": 256,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
        },
    ),
    "mistral-7b-4": (
        "MistralConfig",
        "MistralForCausalLM",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 4,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
        },
    ),
    "pythia-1.4b": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "intermediate_size": 8192,
        },
    ),
    "opt-2.7b-12": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 12,
            "num_attention_heads": 32,
            "ffn_dim": 10240,
            "word_embed_proj_dim": 2560,
        },
    ),
    "gpt2-xl-16": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1600, "n_layer": 16, "n_head": 25}),
    "roberta-large": (
        "RobertaConfig",
        "RobertaForMaskedLM",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "vocab_size": 50265,
            "max_position_embeddings": 514,
        },
    ),
    "t5-large-8": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "d_model": 1024,
            "num_layers": 8,
            "num_heads": 16,
            "d_ff": 4096,
            "decoder_start_token_id": 0,
        },
    ),
}
"""Configuration, class, and the sizes: the configuration's defaults are given again where they are widths of layers.

A last number in a name: so many layers, fewer than the model has. They change no kernel but the optimizer's.
"""
