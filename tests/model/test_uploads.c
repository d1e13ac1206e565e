/* config.json of popular uploads, as published: every setting is understood, or the model is refused by name. */
#include "checkpoint/text_part.h"
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS_5  "\"attention\",\"attention\",\"attention\",\"attention\",\"attention\""
#define LAYERS_10 LAYERS_5 "," LAYERS_5

#define LLAMA(more)                                                                                          \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":"        \
    "\"silu\",\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":11008,\"model_type\":"   \
    "\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":32,\"pretraining_tp\":1,\"rms_norm_eps\":"   \
    "1e-05,\"torch_dtype\":\"bfloat16\",\"use_cache\":true," more "}"
#define BAICHUAN(more)                                                                                       \
    "{\"architectures\":[\"BaichuanForCausalLM\"],\"auto_map\":{\"AutoConfig\":\"configuration_baichuan."    \
    "BaichuanConfig\",\"AutoModelForCausalLM\":\"modeling_baichuan.BaichuanForCausalLM\"},"                  \
    "\"_from_model_config\":true,\"bos_token_id\":1,\"eos_token_id\":2,\"gradient_checkpointing\":false,"    \
    "\"hidden_act\":\"silu\",\"initializer_range\":0.02,\"model_max_length\":4096,\"model_type\":"           \
    "\"baichuan\",\"pad_token_id\":0,\"rms_norm_eps\":1e-06,\"tie_word_embeddings\":false,\"torch_dtype\":"  \
    "\"bfloat16\",\"use_cache\":true," more "}"

#define FIVE_ONES   "1,1,1,1,1"
#define TWENTY_ONES FIVE_ONES "," FIVE_ONES "," FIVE_ONES "," FIVE_ONES
#define SIX_LAYERS                                                                                           \
    "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","               \
    "\"sliding_attention\",\"full_attention\""
#define FOUR_LAYERS "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\""

static const struct upload {
    const char *what, *config;
    const char *family; /* NULL: none */
    const char *words;  /* of the error; NULL: it is accepted */
} UPLOADS[] = {
    { "Yi-6B",
      LLAMA("\"max_position_embeddings\":4096,\"num_key_value_heads\":4,\"rope_scaling\":null,"
            "\"rope_theta\":5000000.0,\"attention_bias\":false,\"vocab_size\":64000"),
      "llama", NULL },
    { "Gemma-4-26B-A4B",
      "{\"architectures\":[\"Gemma4ForConditionalGeneration\"],\"audio_config\":null,\"audio_to"
      "ken_id\":258881,\"boa_token_id\":256000,\"boi_token_id\":255999,\"dtype\":\"bfloat16\",\""
      "eoa_token_id\":258883,\"eoa_token_index\":258883,\"eoi_token_id\":258882,\"eos_token_id\""
      ":[1,106],\"image_token_id\":258880,\"initializer_range\":0.02,\"model_type\":\"gemma4\","
      "\"text_config\":{\"attention_bias\":false,\"attention_dropout\":0.0,\"attention_k_eq_v\""
      ":true,\"bos_token_id\":2,\"dtype\":\"bfloat16\",\"enable_moe_block\":true,\"eos_token_id"
      "\":1,\"final_logit_softcapping\":30.0,\"global_head_dim\":512,\"head_dim\":256,\"hidden_"
      "activation\":\"gelu_pytorch_tanh\",\"hidden_size\":2816,\"hidden_size_per_layer_input\":"
      "0,\"initializer_range\":0.02,\"intermediate_size\":2112,\"layer_types\":"
      "[" SIX_LAYERS "," SIX_LAYERS "," SIX_LAYERS "," SIX_LAYERS "," SIX_LAYERS "]"
      ",\"max_position_embeddings\":262144,\"model_type\":\"gemma4_text\",\"moe_intermediate_si"
      "ze\":704,\"num_attention_heads\":16,\"num_experts\":128,\"num_global_key_value_heads\":2"
      ",\"num_hidden_layers\":30,\"num_key_value_heads\":8,\"num_kv_shared_layers\":0,\"pad_tok"
      "en_id\":0,\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"full_attention\":{\"partial_rota"
      "ry_factor\":0.25,\"rope_theta\":1000000.0,\"rope_type\":\"proportional\"},\"sliding_atte"
      "ntion\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}},\"sliding_window\":1024,\"ti"
      "e_word_embeddings\":true,\"top_k_experts\":8,\"use_bidirectional_attention\":\"vision\","
      "\"use_cache\":true,\"use_double_wide_mlp\":false,\"vocab_size\":262144,\"vocab_size_per_"
      "layer_input\":262144},\"tie_word_embeddings\":true"
      ",\"video_token_id\":258884,\"vision_config\":{\"model_type\":\"gemma4_vision\"},\"visi"
      "on_soft_tokens_per_image\":280}",
      "gemma4_moe", NULL },
    { "Gemma-4-E2B",
      "{\"architectures\":[\"Gemma4ForConditionalGeneration\"],\"audio_config\":null,\"audio_to"
      "ken_id\":258881,\"boa_token_id\":256000,\"boi_token_id\":255999,\"dtype\":\"bfloat16\",\""
      "eoa_token_id\":258883,\"eoa_token_index\":258883,\"eoi_token_id\":258882,\"eos_token_id\""
      ":[1,106],\"image_token_id\":258880,\"initializer_range\":0.02,\"model_type\":\"gemma4\","
      "\"text_config\":{\"attention_bias\":false,\"attention_dropout\":0.0,\"attention_k_eq_v\""
      ":false,\"bos_token_id\":2,\"dtype\":\"bfloat16\",\"enable_moe_block\":false,\"eos_token_"
      "id\":1,\"final_logit_softcapping\":30.0,\"global_head_dim\":512,\"head_dim\":256,\"hidde"
      "n_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":1536,\"hidden_size_per_layer_input\""
      ":256,\"initializer_range\":0.02,\"intermediate_size\":6144,\"max_position_embeddings\":1"
      "31072,\"model_type\":\"gemma4_text\",\"moe_intermediate_size\":null,\"num_attention_head"
      "s\":8,\"num_experts\":null,\"num_global_key_value_heads\":null,\"num_hidden_layers\":35,"
      "\"num_key_value_heads\":1,\"num_kv_shared_layers\":20,\"pad_token_id\":0,\"rms_norm_eps\""
      ":1e-06,\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":0.25,\"rope_th"
      "eta\":1000000.0,\"rope_type\":\"proportional\"},\"sliding_attention\":{\"rope_theta\":10"
      "000.0,\"rope_type\":\"default\"}},\"sliding_window\":512,\"tie_word_embeddings\":true,\""
      "top_k_experts\":null,\"use_bidirectional_attention\":\"vision\",\"use_cache\":true,\"use"
      "_double_wide_mlp\":true,\"vocab_size\":262144,\"vocab_size_per_layer_input\":262144},\"t"
      "ie_word_embeddings\":true,\"video_token_id\":258"
      "884,\"vision_config\":{\"model_type\":\"gemma4_vision\"},\"vision_soft_tokens_per_image\""
      ":280}",
      "gemma4", "hidden_size_per_layer_input: an embedding for each layer" },
    { "Qwen-7B-Chat",
      "{\"architectures\":[\"QWenLMHeadModel\"],\"auto_map\":{\"AutoConfig\":\"configuration_qw"
      "en.QWenConfig\",\"AutoModelForCausalLM\":\"modeling_qwen.QWenLMHeadModel\"},\"attn_dropo"
      "ut_prob\":0.0,\"bf16\":false,\"emb_dropout_prob\":0.0,\"fp16\":false,\"fp32\":false,\"hi"
      "dden_size\":4096,\"intermediate_size\":22016,\"initializer_range\":0.02,\"kv_channels\":"
      "128,\"layer_norm_epsilon\":1e-06,\"max_position_embeddings\":32768,\"model_type\":\"qwen"
      "\",\"no_bias\":true,\"num_attention_heads\":32,\"num_hidden_layers\":32,\"onnx_safe\":nu"
      "ll,\"rotary_emb_base\":10000,\"rotary_pct\":1.0,\"scale_attn_weights\":true,\"seq_length"
      "\":8192,\"tie_word_embeddings\":false,\"tokenizer_class\":\"QWenTokenizer\",\"transforme"
      "rs_version\":\"4.32.0\",\"use_cache\":true,\"use_dynamic_ntk\":true,\"use_flash_attn\":"
      "\"auto\",\"use_logn_attn\":true,\"vocab_size\":151936}",
      "qwen", NULL },
    { "DevOps-Model-7B, in the first release's names",
      "{\"activation\":\"swiglu\",\"apply_residual_connection_post_layernorm\":false,\"architec"
      "tures\":[\"QWenLMHeadModel\"],\"attn_pdrop\":0.0,\"auto_map\":{\"AutoConfig\":\"configur"
      "ation_qwen.QWenConfig\",\"AutoModel\":\"modeling_qwen.QWenLMHeadModel\",\"AutoModelForCa"
      "usalLM\":\"modeling_qwen.QWenLMHeadModel\"},\"bf16\":false,\"bias_dropout_fusion\":true,"
      "\"bos_token_id\":151643,\"embd_pdrop\":0.0,\"eos_token_id\":151643,\"ffn_hidden_size\":2"
      "2016,\"fp16\":false,\"fp32\":true,\"initializer_range\":0.02,\"kv_channels\":128,\"layer"
      "_norm_epsilon\":1e-06,\"model_type\":\"qwen\",\"n_embd\":4096,\"n_head\":32,\"n_inner\":"
      "null,\"n_layer\":32,\"n_positions\":6144,\"no_bias\":true,\"onnx_safe\":null,\"padded_vo"
      "cab_size\":151936,\"params_dtype\":\"torch.bfloat16\",\"pos_emb\":\"rotary\",\"resid_pdr"
      "op\":0.1,\"rotary_emb_base\":10000,\"rotary_pct\":1.0,\"scale_attn_weights\":true,\"seq_"
      "length\":2048,\"tie_word_embeddings\":false,\"tokenizer_type\":\"QWenTokenizer\",\"torch"
      "_dtype\":\"bfloat16\",\"transformers_version\":\"4.32.0\",\"use_cache\":true,\"use_dynam"
      "ic_ntk\":true,\"use_flash_attn\":true,\"use_logn_attn\":true,\"vocab_size\":151936}",
      "qwen", NULL },
    { "MiniCPM3-4B, without model_type",
      "{\"_name_or_path\":\"openbmb/MiniCPM3-4B\",\"architectures\":[\"MiniCPM3ForCausalLM\"],"
      "\"auto_map\":{\"AutoConfig\":\"configuration_minicpm.MiniCPM3Config\",\"AutoModel\":\"mo"
      "deling_minicpm.MiniCPM3Model\",\"AutoModelForCausalLM\":\"modeling_minicpm.MiniCPM3ForCa"
      "usalLM\",\"AutoModelForSeq2SeqLM\":\"modeling_minicpm.MiniCPM3ForCausalLM\",\"AutoModelF"
      "orSequenceClassification\":\"modeling_minicpm.MiniCPM3ForSequenceClassification\"},\"bos"
      "_token_id\":1,\"eos_token_id\":[2,73440],\"hidden_act\":\"silu\",\"initializer_range\":0"
      ".1,\"hidden_size\":2560,\"num_hidden_layers\":62,\"intermediate_size\":6400,\"max_positi"
      "on_embeddings\":32768,\"num_attention_heads\":40,\"num_key_value_heads\":40,\"qk_nope_he"
      "ad_dim\":64,\"qk_rope_head_dim\":32,\"q_lora_rank\":768,\"kv_lora_rank\":256,\"rms_norm_"
      "eps\":1e-05,\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[1.0591234137867171,"
      "1.1241891283591912,1.2596935748670968,1.5380380402321725,2.093982484148734,3.14469351212"
      "67696,4.937952647693647,7.524541999994549,10.475458000005451,13.062047352306353,14.85530"
      "648787323,15.906017515851266,16.461961959767827,16.740306425132907,16.87581087164081,16."
      "940876586213285],\"short_factor\":[1.0591234137867171,1.1241891283591912,1.2596935748670"
      "968,1.5380380402321725,2.093982484148734,3.1446935121267696,4.937952647693647,7.52454199"
      "9994549,10.475458000005451,13.062047352306353,14.85530648787323,15.906017515851266,16.46"
      "1961959767827,16.740306425132907,16.87581087164081,16.940876586213285],\"original_max_po"
      "sition_embeddings\":32768},\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.41."
      "0\",\"use_cache\":true,\"vocab_size\":73448,\"scale_emb\":12,\"dim_model_base\":256,\"sc"
      "ale_depth\":1.4}",
      "minicpm3", NULL },
    { "stablelm-2-1_6b",
      "{\"architectures\":[\"StableLmForCausalLM\"],\"bos_token_id\":100257,\"eos_token_id\":10"
      "0257,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initializer_range\":0.02,\"intermedi"
      "ate_size\":5632,\"layer_norm_eps\":1e-05,\"max_position_embeddings\":4096,\"model_type\""
      ":\"stablelm\",\"num_attention_heads\":32,\"num_hidden_layers\":24,\"num_key_value_heads"
      "\":32,\"partial_rotary_factor\":0.25,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
      "\"torch_dtype\":\"float16\",\"transformers_version\":\"4.38.0\",\"use_cache\":true,\"use"
      "_qkv_bias\":true,\"vocab_size\":100352}",
      "stablelm", NULL },
    { "stablelm-2-12b",
      "{\"architectures\":[\"StableLmForCausalLM\"],\"bos_token_id\":100257,\"eos_token_id\":10"
      "0257,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initializer_range\":0.02,\"intermedi"
      "ate_size\":5632,\"layer_norm_eps\":1e-05,\"max_position_embeddings\":4096,\"model_type\""
      ":\"stablelm\",\"num_attention_heads\":32,\"num_hidden_layers\":24,\"num_key_value_heads"
      "\":32,\"partial_rotary_factor\":0.25,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
      "\"torch_dtype\":\"float16\",\"transformers_version\":\"4.38.0\",\"use_cache\":true,\"qk_"
      "layernorm\":true,\"use_parallel_residual\":true,\"use_qkv_bias\":false,\"vocab_size\":10"
      "0352}",
      "stablelm", "qk_layernorm" },
    { "EXAONE-3.5-2.4B",
      "{\"activation_function\":\"silu\",\"architectures\":[\"ExaoneForCausalLM\"],\"attention_"
      "dropout\":0.0,\"auto_map\":{\"AutoConfig\":\"configuration_exaone.ExaoneConfig\",\"AutoM"
      "odelForCausalLM\":\"modeling_exaone.ExaoneForCausalLM\",\"AutoModelForSequenceClassifica"
      "tion\":\"modeling_exaone.ExaoneForSequenceClassification\"},\"bos_token_id\":1,\"embed_d"
      "ropout\":0.0,\"eos_token_id\":361,\"head_dim\":80,\"hidden_size\":2560,\"initializer_ran"
      "ge\":0.02,\"intermediate_size\":7168,\"layer_norm_epsilon\":1e-05,\"max_position_embeddi"
      "ngs\":32768,\"model_type\":\"exaone\",\"num_attention_heads\":32,\"num_key_value_heads\""
      ":8,\"num_layers\":30,\"pad_token_id\":0,\"rope_scaling\":{\"factor\":8.0,\"high_freq_fac"
      "tor\":4.0,\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type"
      "\":\"llama3\"},\"rope_theta\":1000000,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfl"
      "oat16\",\"transformers_version\":\"4.43.0\",\"use_cache\":true,\"vocab_size\":102400}",
      "exaone", NULL },
    { "WizardCoder-15B",
      "{\"_name_or_path\":\"bigcode/starcoder\",\"activation_function\":\"gelu\",\"architecture"
      "s\":[\"GPTBigCodeForCausalLM\"],\"attention_softmax_in_fp32\":true,\"attn_pdrop\":0.1,\""
      "bos_token_id\":0,\"embd_pdrop\":0.1,\"eos_token_id\":0,\"inference_runner\":0,\"initiali"
      "zer_range\":0.02,\"layer_norm_epsilon\":1e-05,\"max_batch_size\":null,\"max_sequence_len"
      "gth\":null,\"model_type\":\"gpt_bigcode\",\"multi_query\":true,\"n_embd\":6144,\"n_head"
      "\":48,\"n_inner\":24576,\"n_layer\":40,\"n_positions\":8192,\"pad_key_length\":true,\"pr"
      "e_allocate_kv_cache\":false,\"resid_pdrop\":0.1,\"scale_attention_softmax_in_fp32\":true"
      ",\"scale_attn_weights\":true,\"summary_activation\":null,\"summary_first_dropout\":0.1,"
      "\"summary_proj_to_labels\":true,\"summary_type\":\"cls_index\",\"summary_use_proj\":true"
      ",\"torch_dtype\":\"float16\",\"transformers_version\":\"4.30.0.dev0\",\"use_cache\":true"
      ",\"validate_runner_input\":true,\"vocab_size\":49153}",
      "gpt_bigcode", NULL },
    { "Granite-3.1-1B-A400M",
      "{\"architectures\":[\"GraniteMoeForCausalLM\"],\"attention_bias\":false,\"attention_drop"
      "out\":0.0,\"attention_multiplier\":0.015625,\"bos_token_id\":0,\"embedding_multiplier\":"
      "12.0,\"eos_token_id\":0,\"hidden_act\":\"silu\",\"hidden_size\":1024,\"initializer_range"
      "\":0.02,\"intermediate_size\":512,\"logits_scaling\":6.0,\"max_position_embeddings\":131"
      "072,\"model_type\":\"granitemoe\",\"num_attention_heads\":16,\"num_experts_per_tok\":8,"
      "\"num_hidden_layers\":24,\"num_key_value_heads\":8,\"num_local_experts\":32,\"output_rou"
      "ter_logits\":false,\"pad_token_id\":0,\"residual_multiplier\":0.22,\"rms_norm_eps\":1e-0"
      "6,\"rope_scaling\":null,\"rope_theta\":1500000.0,\"router_aux_loss_coef\":0.0,\"tie_word"
      "_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.47.0.dev0\""
      ",\"use_cache\":true,\"vocab_size\":49155}",
      "granitemoe", NULL },
    { "granite-4.0-micro",
      "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0."
      "0,\"attention_multiplier\":"
      "0.015625,\"bos_token_id\":100257,\"embedding_multiplier\":12,\"eos_token_id\":100257,\"hidden_act\":"
      "\"silu\",\"hidden_size\":2560,"
      "\"init_method\":\"mup\",\"initializer_range\":0.1,\"intermediate_size\":8192,\"layer_types\":"
      "[" LAYERS_10 "," LAYERS_10 "," LAYERS_10 "," LAYERS_10
      "],\"logits_scaling\":10,\"mamba_chunk_size\":256,\"mamba_conv_bias\":true,\"mamba_d_conv\":4,\"mamba_"
      "d_head\":64,"
      "\"mamba_d_state\":128,\"mamba_expand\":2,\"mamba_n_groups\":1,\"mamba_n_heads\":80,\"mamba_proj_"
      "bias\":false,"
      "\"max_position_embeddings\":131072,\"model_type\":\"granitemoehybrid\",\"normalization_function\":"
      "\"rmsnorm\",\"num_attention_heads\":40,"
      "\"num_experts_per_tok\":0,\"num_hidden_layers\":40,\"num_key_value_heads\":8,\"num_local_experts\":0,"
      "\"output_router_logits\":false,"
      "\"pad_token_id\":100256,\"position_embedding_type\":\"rope\",\"residual_multiplier\":0.22,\"rms_norm_"
      "eps\":1e-05,\"rope_scaling\":null,"
      "\"rope_theta\":10000000,\"router_aux_loss_coef\":0.01,\"shared_intermediate_size\":8192,\"tie_word_"
      "embeddings\":true,"
      "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.56.0\",\"use_cache\":true,\"vocab_size\":"
      "100352}",
      "granitemoehybrid", NULL },
    { "granite-4.0-h-micro, in part: layers of Mamba",
      "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"intermediate_size\":8192,\"hidden_size\":2048,"
      "\"layer_types\":[\"mamba\","
      "\"attention\"],"
      "\"model_type\":\"granitemoehybrid\",\"num_attention_heads\":32,\"num_hidden_layers\":2,\"num_key_"
      "value_heads\":8,"
      "\"num_local_experts\":0,\"position_embedding_type\":\"rope\",\"shared_intermediate_size\":8192,"
      "\"vocab_size\":100352}",
      "granitemoehybrid", "layer_types: a layer without attention" },
    { "ERNIE-4.5-21B-A3B",
      "{\"architectures\":[\"Ernie4_5_MoeForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,"
      "\"hidden_act\":\"silu\",\"hidden_size\":2560,\"intermediate_size\":12288,\"max_position_"
      "embeddings\":131072,\"model_type\":\"ernie4_5_moe\",\"moe_capacity\":[64,64,64],\"moe_ga"
      "te\":\"topk\",\"moe_intermediate_size\":1536,\"moe_k\":6,\"moe_layer_interval\":1,\"moe_"
      "layer_start_index\":1,\"moe_num_experts\":64,\"moe_num_shared_experts\":2,\"moe_use_aux_"
      "free\":true,\"num_attention_heads\":20,\"num_hidden_layers\":28,\"num_key_value_heads\":"
      "4,\"num_nextn_predict_layers\":1,\"pad_token_id\":0,\"rms_norm_eps\":1e-05,\"rope_theta"
      "\":500000,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"use_bias\":false,"
      "\"use_cache\":true,\"vocab_size\":103424}",
      "ernie4_5_moe", NULL },
    { "compressed-tensors' first name of quantization_config",
      LLAMA("\"max_position_embeddings\":4096,\"vocab_size\":32000,\"compression_config\":{\"config_groups\":"
            "{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"symmetric\":true,"
            "\"type\":\"int\"}}},\"format\":\"int-quantized\",\"quant_method\":\"compressed-tensors\"}"),
      "llama", NULL },
    { "SmolLM2",
      LLAMA("\"head_dim\":64,\"is_llama_config\":true,\"max_position_embeddings\":8192,"
            "\"rope_interleaved\":false,\"rope_theta\":100000,\"vocab_size\":49152,"
            "\"transformers.js_config\":{\"kv_cache_dtype\":{\"q4f16\":\"float16\"}}"),
      "llama", NULL },
    { "Falcon3-7B",
      LLAMA("\"attention_bias\":false,\"head_dim\":256,\"max_position_embeddings\":32768,"
            "\"mlp_bias\":false,\"num_key_value_heads\":4,\"rope_theta\":1000042,"
            "\"vocab_size\":131072"),
      "llama", NULL },
    { "Llama-3.2-3B",
      LLAMA("\"max_position_embeddings\":131072,\"num_key_value_heads\":8,\"rope_theta\":"
            "500000.0,\"vocab_size\":128256,\"rope_scaling\":{\"factor\":32.0,"
            "\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"
            "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}"),
      "llama", NULL },
    { "c4ai-command-r7b-12-2024",
      "{\"architectures\":[\"Cohere2ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bo"
      "s_token_id\":5,\"cache_implementation\":\"hybrid\",\"eos_token_id\":255001,\"head_dim\":128,\"hidden"
      "_act\":\"silu\",\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":14336,\"layer_"
      "norm_eps\":1e-05,\"layer_switch\":4,\"logit_scale\":0.25,\"max_position_embeddings\":132096,\"mode"
      "l_type\":\"cohere2\",\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
      "\"order_of_interleaved_layers\":\"local_attn_first\",\"pad_token_id\":0,\"position_embedding_type"
      "\":\"rope_gptj\",\"rope_scaling\":null,\"rope_theta\":50000,\"rotary_pct\":1.0,\"sliding_window\":409"
      "6,\"sliding_window_pattern\":4,\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.48.0.dev0\""
      ",\"use_cache\":true,\"use_embedding_sharing\":true,\"use_gated_activation\":true,\"use_parallel_b"
      "lock\":true,\"use_parallel_embedding\":true,\"vocab_size\":256000}",
      "cohere2", NULL },
    { "c4ai-command-r-v01",
      "{\"architectures\":[\"CohereForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos"
      "_token_id\":5,\"eos_token_id\":255001,\"hidden_act\":\"silu\",\"hidden_size\":8192,\"initializer_ran"
      "ge\":0.02,\"intermediate_size\":22528,\"layer_norm_eps\":1e-05,\"logit_scale\":0.0625,\"max_positi"
      "on_embeddings\":8192,\"model_max_length\":131072,\"model_type\":\"cohere\",\"num_attention_heads\":"
      "64,\"num_hidden_layers\":40,\"num_key_value_heads\":64,\"pad_token_id\":0,\"rope_theta\":8000000.0"
      ",\"torch_dtype\":\"float16\",\"transformers_version\":\"4.38.2\",\"use_cache\":true,\"use_qk_norm\":fa"
      "lse,\"vocab_size\":256000}",
      "cohere", NULL },
    { "c4ai-command-r-plus",
      "{\"architectures\":[\"CohereForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos"
      "_token_id\":5,\"eos_token_id\":255001,\"hidden_act\":\"silu\",\"hidden_size\":8192,\"initializer_ran"
      "ge\":0.02,\"intermediate_size\":22528,\"layer_norm_eps\":1e-05,\"logit_scale\":0.0625,\"max_positi"
      "on_embeddings\":8192,\"model_max_length\":131072,\"model_type\":\"cohere\",\"num_attention_heads\":"
      "64,\"num_hidden_layers\":40,\"num_key_value_heads\":64,\"pad_token_id\":0,\"rope_theta\":8000000.0"
      ",\"torch_dtype\":\"float16\",\"transformers_version\":\"4.38.2\",\"use_cache\":true,\"use_qk_norm\":tr"
      "ue,\"vocab_size\":256000}",
      "cohere", "use_qk_norm: true" },
    { "gemma-2b",
      "{\"architectures\":[\"GemmaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_"
      "token_id\":2,"
      "\"eos_token_id\":1,\"head_dim\":256,\"hidden_act\":\"gelu\",\"hidden_size\":2048,\"initializer_"
      "range\":0.02,"
      "\"intermediate_size\":16384,\"max_position_embeddings\":8192,\"model_type\":\"gemma\",\"num_attention_"
      "heads\":8,"
      "\"num_hidden_layers\":18,\"num_key_value_heads\":1,\"pad_token_id\":0,\"rms_norm_eps\":1e-06,"
      "\"rope_scaling\":null,\"rope_theta\":10000.0,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,\"vocab_"
      "size\":256000}",
      "gemma", NULL },
    { "MiniMax-M2.7",
      "{\"architectures\":[\"MiniMaxM2ForCausalLM\"],\"attn_type_list\":[" TWENTY_ONES "," TWENTY_ONES
      "," TWENTY_ONES ",1,1"
      "],\"auto_map\":{\"AutoConfig\":\"configuration_minimax_m2.MiniMaxM2Config\",\"AutoModelForCausalL"
      "M\":\"modeling_minimax_m2.MiniMaxM2ForCausalLM\"},\"dtype\":\"bfloat16\",\"head_dim\":128,\"hidden_a"
      "ct\":\"silu\",\"hidden_size\":3072,\"intermediate_size\":1536,\"max_position_embeddings\":204800,\"m"
      "odel_type\":\"minimax_m2\",\"mtp_transformer_layers\":1,\"num_attention_heads\":48,\"num_experts_p"
      "er_tok\":8,\"num_hidden_layers\":62,\"num_key_value_heads\":8,\"num_local_experts\":256,\"num_mtp_"
      "modules\":3,\"qk_norm_type\":\"per_layer\",\"quantization_config\":{\"activation_scheme\":\"dynamic\""
      ",\"fmt\":\"float8_e4m3fn\",\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"modules_to_not_"
      "convert\":[\"gate\",\"e_score_correction_bias\",\"lm_head\"]},\"rms_norm_eps\":1e-06,\"rope_theta\":5"
      "000000,\"rotary_dim\":64,\"scoring_func\":\"sigmoid\",\"shared_intermediate_size\":0,\"tie_word_emb"
      "eddings\":false,\"transformers_version\":\"4.46.1\",\"use_cache\":true,\"use_mtp\":true,\"use_qk_nor"
      "m\":true,\"use_routing_bias\":true,\"vocab_size\":200064}",
      "minimax_m2", NULL },
    { "Olmo-3-7B-Think",
      "{\"architectures\":[\"Olmo3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
      "\"dtype\":"
      "\"bfloat16\",\"eos_token_id\":100257,\"hidden_act\":\"silu\",\"hidden_size\":4096,\"initializer_"
      "range\":"
      "0.02,\"intermediate_size\":11008,\"layer_types\":[" FOUR_LAYERS "," FOUR_LAYERS "," FOUR_LAYERS
      "," FOUR_LAYERS "," FOUR_LAYERS "," FOUR_LAYERS "," FOUR_LAYERS "," FOUR_LAYERS "],"
      "\"max_position_embeddings\":65536,\"model_type\":\"olmo3\",\"num_attention_heads\":32,"
      "\"num_hidden_layers\":32,\"num_key_value_heads\":32,\"pad_token_id\":100277,\"rms_norm_eps\":1e-06,"
      "\"rope_scaling\":{\"attention_factor\":1.2079441541679836,\"beta_fast\":32.0,\"beta_slow\":1.0,"
      "\"factor\":8.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"yarn\"},\"rope_theta\":"
      "500000,"
      "\"sliding_window\":4096,\"tie_word_embeddings\":false,\"transformers_version\":\"4.57.1\","
      "\"use_cache\":false,\"vocab_size\":100278}",
      "olmo2", NULL },
    { "InternLM2.5-7B",
      "{\"architectures\":[\"InternLM2ForCausalLM\"],\"attn_implementation\":\"eager\",\"auto_map\":"
      "{\"AutoConfig\":\"configuration_internlm2.InternLM2Config\",\"AutoModelForCausalLM\":"
      "\"modeling_internlm2.InternLM2ForCausalLM\"},\"bias\":false,\"hidden_act\":\"silu\",\"hidden_size\":"
      "4096,\"intermediate_size\":14336,\"max_position_embeddings\":32768,\"model_type\":\"internlm2\","
      "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"pad_token_id\":2,"
      "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0},"
      "\"rope_theta\":1000000,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,"
      "\"vocab_size\":92544}",
      "internlm2", NULL },
    { "InternLM, the first",
      "{\"architectures\":[\"InternLMForCausalLM\"],\"model_type\":\"internlm\",\"bias\":true}", NULL, NULL },
    { "InternLM3-8B",
      "{\"architectures\":[\"InternLM3ForCausalLM\"],\"auto_map\":{\"AutoConfig\":\"configuration_internlm3."
      "InternLM3Config\",\"AutoModelForCausalLM\":\"modeling_internlm3.InternLM3ForCausalLM\"},\"bias\":"
      "false,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":10240,"
      "\"max_position_embeddings\":32768,\"model_type\":\"internlm3\",\"num_attention_heads\":32,"
      "\"num_hidden_layers\":48,\"num_key_value_heads\":2,\"qkv_bias\":false,\"rms_norm_eps\":1e-05,"
      "\"rope_scaling\":{\"factor\":6.0,\"rope_type\":\"dynamic\"},\"rope_theta\":50000000,"
      "\"tie_word_embeddings\":false,\"vocab_size\":128512}",
      "internlm3", NULL },
    { "Baichuan2-7B",
      BAICHUAN("\"hidden_size\":4096,\"intermediate_size\":11008,\"num_attention_heads\":32,"
               "\"num_hidden_layers\":32,\"max_position_embeddings\":4096,\"vocab_size\":"
               "125696,\"z_loss_weight\":0"),
      "baichuan", NULL },
    { "Baichuan2-13B",
      BAICHUAN("\"hidden_size\":5120,\"intermediate_size\":13696,\"num_attention_heads\":40,"
               "\"num_hidden_layers\":40,\"vocab_size\":125696,\"z_loss_weight\":0"),
      "baichuan", NULL },
    { "openPangu-Embedded-7B",
      "{\"architectures\":[\"PanguEmbeddedForCausalLM\"],\"auto_map\":{\"AutoConfig\":"
      "\"configuration_openpangu_dense.PanguEmbeddedConfig\",\"AutoModel\":\"modeling_openpangu_dense."
      "PanguEmbeddedModel\",\"AutoModelForCausalLM\":\"modeling_openpangu_dense.PanguEmbeddedForCausalLM\"},"
      "\"bias\":true,\"attention_dropout\":0.0,\"eos_token_id\":45892,\"hidden_act\":\"silu\","
      "\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":12800,"
      "\"max_position_embeddings\":32768,\"model_type\":\"PanguEmbedded\",\"num_attention_heads\":32,"
      "\"num_hidden_layers\":34,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":16000000.0,"
      "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,\"vocab_size\":153376}",
      "pangu_embedded", NULL },
    { "Falcon-40B, first release",
      "{\"alibi\":false,\"apply_residual_connection_post_layernorm\":false,\"architectures\":"
      "[\"RWForCausalLM\"],\"attention_dropout\":0.0,\"auto_map\":{\"AutoConfig\":\"configuration_RW."
      "RWConfig\",\"AutoModelForCausalLM\":\"modelling_RW.RWForCausalLM\"},\"bias\":false,\"hidden_size\":"
      "8192,\"layer_norm_epsilon\":1e-05,\"model_type\":\"RefinedWeb\",\"n_head\":128,\"n_head_kv\":8,"
      "\"n_layer\":60,\"parallel_attn\":true,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,\"vocab_size\":"
      "65024}",
      "falcon", NULL },
    { "Falcon-7B, saved by transformers 5",
      "{\"alibi\":false,\"apply_residual_connection_post_layernorm\":false,\"architectures\":"
      "[\"FalconForCausalLM\"],\"bias\":false,\"dtype\":\"bfloat16\",\"hidden_size\":4544,"
      "\"layer_norm_epsilon\":1e-05,\"model_type\":\"falcon\",\"multi_query\":true,"
      "\"new_decoder_architecture\":false,\"num_attention_heads\":71,\"num_hidden_layers\":32,"
      "\"parallel_attn\":true,\"rope_parameters\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"},"
      "\"vocab_size\":65024}",
      "falcon", NULL },
    { "GLM-4.5V, saved by transformers 5",
      "{\"model_type\":\"glm4v_moe\",\"text_config\":{\"model_type\":\"glm4v_moe_text\",\"hidden_size\":4096,"
      "\"intermediate_size\":10944,\"moe_intermediate_size\":1408,\"num_attention_heads\":96,"
      "\"num_key_value_heads\":8,\"head_dim\":128,\"num_hidden_layers\":46,\"vocab_size\":151552,"
      "\"first_k_dense_replace\":1,\"n_group\":1,\"n_routed_experts\":128,\"n_shared_experts\":1,"
      "\"num_experts_per_tok\":8,\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":1.0,"
      "\"attention_bias\":true,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,\"router_aux_loss_coef\":0."
      "0001,"
      "\"rope_parameters\":{\"mrope_section\":[8,12,12],\"partial_rotary_factor\":0.5,\"rope_theta\":10000.0,"
      "\"rope_type\":\"default\"},\"max_position_embeddings\":65536},\"vision_config\":{\"hidden_size\":1536}"
      "}",
      "glm4_moe", NULL },
    { "Falcon-RW-1B",
      "{\"alibi\":true,\"architectures\":[\"FalconForCausalLM\"],\"bias\":true,\"hidden_size\":2048,"
      "\"layer_norm_epsilon\":1e-05,\"model_type\":\"falcon\",\"multi_query\":false,"
      "\"new_decoder_architecture\":false,\"num_attention_heads\":32,\"num_hidden_layers\":24,"
      "\"parallel_attn\":false,\"vocab_size\":50304}",
      "falcon", "alibi: true" },
    { "Phi-3-small",
      "{\"architectures\":[\"Phi3SmallForCausalLM\"],\"model_type\":\"phi3small\",\"hidden_size\":4096}",
      NULL, NULL },
    { "Qwen2.5-VL-7B",
      "{\"architectures\":[\"Qwen2_5_VLForConditionalGeneration\"],\"attention_dropout\":0.0,\"hidden_act\":"
      "\"silu\",\"hidden_size\":3584,\"image_token_id\":151655,\"intermediate_size\":18944,"
      "\"max_position_embeddings\":128000,\"max_window_layers\":28,\"model_type\":\"qwen2_5_vl\","
      "\"num_attention_heads\":28,\"num_hidden_layers\":28,\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,"
      "\"rope_scaling\":{\"mrope_section\":[16,24,24],\"rope_type\":\"default\",\"type\":\"default\"},"
      "\"rope_theta\":1000000.0,\"sliding_window\":32768,\"tie_word_embeddings\":false,\"use_cache\":false,"
      "\"use_sliding_window\":false,\"video_token_id\":151656,\"vocab_size\":152064,\"vision_config\":"
      "{\"hidden_size\":1280,\"model_type\":\"qwen2_5_vl\"},\"vision_start_token_id\":151652}",
      "qwen2_vl", NULL },
    { "Qwen3-VL-4B",
      "{\"architectures\":[\"Qwen3VLForConditionalGeneration\"],\"image_token_id\":151655,\"model_type\":"
      "\"qwen3_vl\",\"text_config\":{\"attention_bias\":false,\"attention_dropout\":0.0,\"dtype\":"
      "\"bfloat16\",\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2560,\"intermediate_size\":9728,"
      "\"max_position_embeddings\":262144,\"model_type\":\"qwen3_vl_text\",\"num_attention_heads\":32,"
      "\"num_hidden_layers\":36,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,\"rope_scaling\":"
      "{\"mrope_interleaved\":true,\"mrope_section\":[24,20,20],\"rope_type\":\"default\"},\"rope_theta\":"
      "5000000,\"tie_word_embeddings\":true,\"use_cache\":true,\"vocab_size\":151936},"
      "\"tie_word_embeddings\":true,\"video_token_id\":151656,\"vision_config\":{\"depth\":24}}",
      "qwen3_vl", NULL },
    { "Mistral-Small-3.1",
      "{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"image_token_index\":10,\"model_type\":"
      "\"mistral3\",\"multimodal_projector_bias\":false,\"projector_hidden_act\":\"gelu\","
      "\"spatial_merge_size\":2,\"text_config\":{\"attention_dropout\":0.0,\"head_dim\":128,\"hidden_act\":"
      "\"silu\",\"hidden_size\":5120,\"intermediate_size\":32768,\"max_position_embeddings\":131072,"
      "\"model_type\":\"mistral\",\"num_attention_heads\":32,\"num_hidden_layers\":40,"
      "\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000000.0,\"sliding_window\":null,"
      "\"use_cache\":true,\"vocab_size\":131072},\"vision_config\":{\"model_type\":\"pixtral\"},"
      "\"vision_feature_layer\":-1}",
      "llama", NULL },
    { "Ministral-3-3B",
      "{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"dtype\":\"bfloat16\",\"image_token_inde"
      "x\":10,\"model_type\":\"mistral3\",\"multimodal_projector_bias\":false,\"projector_hidden_act\":\"ge"
      "lu\",\"spatial_merge_size\":2,\"text_config\":{\"attention_dropout\":0.0,\"head_dim\":128,\"hidden_a"
      "ct\":\"silu\",\"hidden_size\":3072,\"initializer_range\":0.02,\"intermediate_size\":9216,\"max_posit"
      "ion_embeddings\":262144,\"model_type\":\"ministral3\",\"num_attention_heads\":32,\"num_hidden_laye"
      "rs\":26,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,\"rope_parameters\":{\"beta_fast\":32.0,\"b"
      "eta_slow\":1.0,\"factor\":16.0,\"llama_4_scaling_beta\":0.1,\"mscale\":1.0,\"mscale_all_dim\":1.0,\""
      "original_max_position_embeddings\":16384,\"rope_theta\":1000000.0,\"rope_type\":\"yarn\",\"type\":\""
      "yarn\"},\"sliding_window\":null,\"tie_word_embeddings\":true,\"use_cache\":true,\"vocab_size\":1310"
      "72},\"vision_config\":{\"model_type\":\"pixtral\"},\"vision_feature_layer\":-1}",
      "ministral3", NULL },
    { "bge-m3",
      "{\"_name_or_path\":\"\",\"architectures\":[\"XLMRobertaModel\"],\"attention_probs_dropout_prob\""
      ":0.1,\"bos_token_id\":0,\"classifier_dropout\":null,\"eos_token_id\":2,\"hidden_act\":\"gelu\","
      "\"hidden_dropout_prob\":0.1,\"hidden_size\":1024,\"initializer_range\":0.02,\"intermediate_size"
      "\":4096,\"layer_norm_eps\":1e-05,\"max_position_embeddings\":8194,\"model_type\":\"xlm-roberta\""
      ",\"num_attention_heads\":16,\"num_hidden_layers\":24,\"output_past\":true,\"pad_token_id\":1,\"p"
      "osition_embedding_type\":\"absolute\",\"torch_dtype\":\"float32\",\"transformers_version\":\"4.3"
      "3.0\",\"type_vocab_size\":1,\"use_cache\":true,\"vocab_size\":250002}",
      "roberta", NULL },
    { "bge-reranker-v2-m3",
      "{\"_name_or_path\":\"BAAI/bge-m3\",\"architectures\":[\"XLMRobertaForSequenceClassification\"],"
      "\"attention_probs_dropout_prob\":0.1,\"bos_token_id\":0,\"classifier_dropout\":null,\"eos_token_"
      "id\":2,\"hidden_act\":\"gelu\",\"hidden_dropout_prob\":0.1,\"hidden_size\":1024,\"id2label\":{\""
      "0\":\"LABEL_0\"},\"initializer_range\":0.02,\"intermediate_size\":4096,\"label2id\":{\"LABEL_0\""
      ":0},\"layer_norm_eps\":1e-05,\"max_position_embeddings\":8194,\"model_type\":\"xlm-roberta\",\"n"
      "um_attention_heads\":16,\"num_hidden_layers\":24,\"output_past\":true,\"pad_token_id\":1,\"posit"
      "ion_embedding_type\":\"absolute\",\"torch_dtype\":\"float32\",\"transformers_version\":\"4.38.1"
      "\",\"type_vocab_size\":1,\"use_cache\":true,\"vocab_size\":250002}",
      "roberta", NULL },
    { "chinese-roberta-wwm-ext, a bert",
      "{\"architectures\":[\"BertForMaskedLM\"],\"attention_probs_dropout_prob\":0.1,\"bos_token_id\":0"
      ",\"directionality\":\"bidi\",\"eos_token_id\":2,\"hidden_act\":\"gelu\",\"hidden_dropout_prob\":"
      "0.1,\"hidden_size\":768,\"initializer_range\":0.02,\"intermediate_size\":3072,\"layer_norm_eps\""
      ":1e-12,\"max_position_embeddings\":512,\"model_type\":\"bert\",\"num_attention_heads\":12,\"num_"
      "hidden_layers\":12,\"output_past\":true,\"pad_token_id\":0,\"pooler_fc_size\":768,\"pooler_num_a"
      "ttention_heads\":12,\"pooler_num_fc_layers\":3,\"pooler_size_per_head\":128,\"pooler_type\":\"fi"
      "rst_token_transform\",\"type_vocab_size\":2,\"vocab_size\":21128}",
      "bert", NULL },
    { "Qwen3-Coder-30B-A3B",
      "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"attention_dropout\":0.0,\"decoder_sparse_step\":1"
      ",\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initial"
      "izer_range\":0.02,\"intermediate_size\":5472,\"max_position_embeddings\":262144,\"max_window_lay"
      "ers\":28,\"mlp_only_layers\":[],\"model_type\":\"qwen3_moe\",\"moe_intermediate_size\":768,\"nor"
      "m_topk_prob\":true,\"num_attention_heads\":32,\"num_experts\":128,\"num_experts_per_tok\":8,\"nu"
      "m_hidden_layers\":48,\"num_key_value_heads\":4,\"output_router_logits\":false,\"qkv_bias\":false"
      ",\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_theta\":10000000,\"router_aux_loss_coef\":0"
      ".0,\"shared_expert_intermediate_size\":0,\"sliding_window\":null,\"tie_word_embeddings\":false,"
      "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.52.3\",\"use_cache\":true,\"use_qk_nor"
      "m\":true,\"use_sliding_window\":false,\"vocab_size\":151936}",
      "qwen3_moe", NULL },
    { "Qwen3-MoE with a shared expert",
      "{\"model_type\":\"qwen3_moe\",\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\""
      ":5472,\"moe_intermediate_size\":768,\"num_attention_heads\":32,\"num_hidden_layers\":48,\"num_ke"
      "y_value_heads\":4,\"head_dim\":128,\"norm_topk_prob\":true,\"shared_expert_intermediate_size\":5"
      "12,\"vocab_size\":151936}",
      "qwen3_moe", "shared_expert_intermediate_size: 512 is not supported" },
    { "llama-7b",
      "{\"architectures\":[\"LlamaForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":"
      "\"silu\",\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":11008,\"max_posit"
      "ion_embeddings\":2048,\"max_sequence_length\":2048,\"model_type\":\"llama\",\"num_attention_head"
      "s\":32,\"num_hidden_layers\":32,\"pad_token_id\":0,\"rms_norm_eps\":1e-06,\"tie_word_embeddings"
      "\":false,\"torch_dtype\":\"float16\",\"transformers_version\":\"4.28.0.dev0\",\"use_cache\":true"
      ",\"vocab_size\":32000}",
      "llama", NULL },
    { "starcoder2-15b",
      "{\"architectures\":[\"Starcoder2ForCausalLM\"],\"attention_dropout\":0.1,\"attention_softmax_in_"
      "fp32\":true,\"bos_token_id\":0,\"embedding_dropout\":0.1,\"eos_token_id\":0,\"hidden_act\":\"gel"
      "u_pytorch_tanh\",\"hidden_size\":6144,\"initializer_range\":0.01275,\"intermediate_size\":24576,"
      "\"layer_norm_epsilon\":1e-05,\"max_position_embeddings\":16384,\"mlp_type\":\"default\",\"model_"
      "type\":\"starcoder2\",\"norm_epsilon\":1e-05,\"norm_type\":\"layer_norm\",\"num_attention_heads"
      "\":48,\"num_hidden_layers\":40,\"num_key_value_heads\":4,\"residual_dropout\":0.1,\"rope_theta\""
      ":100000,\"scale_attention_softmax_in_fp32\":true,\"scale_attn_weights\":true,\"sliding_window\":"
      "4096,\"torch_dtype\":\"bfloat16\",\"use_bias\":true,\"use_cache\":true,\"vocab_size\":49152}",
      "starcoder2", NULL },
    { "falcon-11B",
      "{\"activation\":\"gelu\",\"alibi\":false,\"apply_residual_connection_post_layernorm\":false,\"ar"
      "chitectures\":[\"FalconForCausalLM\"],\"attention_dropout\":0.0,\"bias\":false,\"bos_token_id\":"
      "11,\"eos_token_id\":11,\"ff_factor\":4,\"ffn_hidden_size\":16384,\"hidden_dropout\":0.0,\"hidden"
      "_size\":4096,\"initializer_range\":0.02,\"layer_norm_epsilon\":1e-05,\"max_position_embeddings\""
      ":8192,\"model_type\":\"falcon\",\"multi_query\":true,\"new_decoder_architecture\":true,\"num_att"
      "ention_heads\":32,\"num_hidden_layers\":60,\"num_kv_heads\":8,\"num_ln_in_parallel_attn\":1,\"pa"
      "rallel_attn\":true,\"rope_scaling\":null,\"rope_theta\":500042.0,\"tie_word_embeddings\":false,"
      "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.39.2\",\"use_cache\":true,\"vocab_size"
      "\":65024}",
      "falcon", NULL },
    { "DeepSeek-R1-0528-Qwen3-8B",
      "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"b"
      "os_token_id\":151643,\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_s"
      "ize\":4096,\"initializer_range\":0.02,\"intermediate_size\":12288,\"max_position_embeddings\":13"
      "1072,\"max_window_layers\":36,\"model_type\":\"qwen3\",\"num_attention_heads\":32,\"num_hidden_l"
      "ayers\":36,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"attn_factor\":0."
      "8782488562869419,\"factor\":4.0,\"original_max_position_embeddings\":32768,\"rope_type\":\"yarn"
      "\"},\"rope_theta\":1000000,\"sliding_window\":null,\"tie_word_embeddings\":false,\"torch_dtype\""
      ":\"bfloat16\",\"transformers_version\":\"4.51.0\",\"use_cache\":true,\"use_sliding_window\":fals"
      "e,\"vocab_size\":151936}",
      "qwen3", NULL },
    { "Cerebras-GPT-111M",
      "{\"activation_function\":\"gelu\",\"architectures\":[\"GPT2LMHeadModel\"],\"attn_pdrop\":0.0,\"e"
      "mbd_pdrop\":0.0,\"initializer_range\":0.02,\"layer_norm_epsilon\":1e-05,\"model_type\":\"gpt2\","
      "\"n_embd\":768,\"n_head\":12,\"n_inner\":3072,\"n_layer\":10,\"n_positions\":2048,\"resid_pdrop"
      "\":0.0,\"scale_attn_weights\":true,\"tokenizer_class\":\"GPT2Tokenizer\",\"use_cache\":true,\"vo"
      "cab_size\":50257}",
      "gpt2", NULL },
};

static const struct family *family_of(const json_t *config)
{
    for (int i = 0; FAMILIES[i]; i++) {
        if (FAMILIES[i]->is_mine(config))
            return FAMILIES[i];
    }
    return NULL;
}

static void check_upload(const struct upload *u)
{
    bool has_vision;
    struct tutti_error err = { 0 };
    json_t *root = json_loads(u->config, 0, NULL);
    assert_non_null(root);
    assert_true(text_part_unwrap(root, &has_vision));
    const struct family *family = family_of(root);
    if (!family != !u->family || (family && strcmp(family->name, u->family) != 0))
        fail_msg("%s: family %s", u->what, family ? family->name : "none");
    if (family) {
        const struct config_key *lists[3] = { CONFIG_KEYS_COMMON, family->keys };
        struct model_desc d = { .n_kinds = 1, .kinds[0].ffn.has_gate = true };
        struct config c = { .root = root, .file = u->what, .prefix = "", .err = &err, .is_quiet = true };
        family->describe(&d, &c, false);
        describe_code(&c, family->name, family->code);
        enum tutti_status st = config_end(&c, lists, family->name);
        if (u->words ? st != TUTTI_E_UNSUPPORTED || !strstr(err.text, u->words) : st != TUTTI_OK)
            fail_msg("%s: status %d, \"%s\", expected \"%s\"", u->what, st, err.text,
                     u->words ? u->words : "");
        d.n_usable_vocab = d.n_vocab;
        if (st == TUTTI_OK && model_desc_check(&d, u->what, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
    }
    json_decref(root);
}

static void popular_uploads_are_accepted_or_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof UPLOADS / sizeof *UPLOADS; i++)
        check_upload(&UPLOADS[i]);
}

/* The first layer with a window where a file of Qwen uses it without layer_types: transformers' configuration classes. */
static void windows_begin_at_the_layer_of_the_class(void **state)
{
#define QWEN(type, layers, rest)                                                                             \
    "{\"model_type\":\"" type "\",\"hidden_size\":256,\"intermediate_size\":512,\"num_attention_heads\":4,"  \
    "\"num_key_value_heads\":2,\"num_hidden_layers\":" layers ",\"vocab_size\":512,\"hidden_act\":\"silu\"," \
    "\"sliding_window\":64,\"use_sliding_window\":true" rest "}"
    static const struct {
        const char *config;
        int n_layers, first;
    } CASES[] = {
        { QWEN("qwen2", "30", ""), 30, 28 },
        { QWEN("qwen3", "30", ""), 30, 28 },
        { QWEN("qwen2", "30", ",\"max_window_layers\":3"), 30, 3 },
        { QWEN("qwen2_vl", "82", ",\"rope_scaling\":{\"mrope_section\":[8,12,12],\"type\":\"mrope\"}"), 82,
          80 },
        { QWEN("qwen2_5_vl", "82", ",\"rope_scaling\":{\"mrope_section\":[8,12,12],\"type\":\"mrope\"}"), 82,
          80 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        json_t *root = json_loads(CASES[i].config, 0, NULL);
        assert_non_null(root);
        struct model_desc d = { .n_kinds = 1, .kinds[0].ffn.has_gate = true };
        struct config c = {
            .root = root, .file = "config.json", .prefix = "", .err = &err, .is_quiet = true
        };
        const struct family *family = family_of(root);
        const struct config_key *lists[3] = { CONFIG_KEYS_COMMON, family->keys };
        family->describe(&d, &c, false);
        if (config_end(&c, lists, family->name) != TUTTI_OK)
            fail_msg("%s: %s", CASES[i].config, err.text);
        assert_int_equal(d.n_layers, CASES[i].n_layers);
        for (int layer = 0; layer < d.n_layers; layer++)
            assert_int_equal(model_layer(&d, layer)->attn.window, layer < CASES[i].first ? 0 : 64);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_begin_at_the_layer_of_the_class),
        cmocka_unit_test(popular_uploads_are_accepted_or_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
