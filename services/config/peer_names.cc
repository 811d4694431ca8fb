#include "services/config/peer_names.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace syncopate::config {

// The names are those of verl, TRL, prime-rl and OpenRLHF, in the order of kPeers.
const std::vector<PeerNames>& AllPeerNames() {
  static const auto* const all = new std::vector<PeerNames>{
      {"run.name", {"experiment_name", "run_name", "", ""}},
      {"run.dir", {"default_local_dir", "output_dir", "output_dir", "save_path"}},
      {"run.steps", {"total_training_steps", "max_steps", "max_steps", ""}},
      {"run.rollouters", {"", "", "", "vllm_num_engines"}},
      {"trainer.world", {"n_gpus_per_node", "num_processes", "", "actor_num_gpus_per_node"}},
      {"model.path", {"", "model_name_or_path", "model.name", "pretrain"}},
      {"model.context_length", {"max_model_len", "vllm_max_model_length", "seq_len", "max_len"}},
      {"data.files", {"train_files", "dataset_name", "", "prompt_data"}},
      {"data.eval_files", {"val_files", "", "", "eval_dataset"}},
      {"data.batch_groups", {"train_batch_size", "", "", "rollout_batch_size"}},
      {"data.refill_zero_variance", {"filter_groups.enable", "", "", "dynamic_filtering"}},
      {"data.max_prompt_tokens", {"max_prompt_length", "max_prompt_length", "", "prompt_max_len"}},
      {"data.prompt_field", {"prompt_key", "", "", "input_key"}},
      {"data.answer_field", {"", "", "", "label_key"}},
      {"data.data_source_field", {"reward_fn_key", "", "", ""}},
      {"reward.name", {"custom_reward_function.name", "reward_funcs", "", ""}},
      {"reward.url", {"", "", "", "remote_rm_url"}},
      {"rollout.samples", {"rollout.n", "num_generations", "rollouts_per_example", "n_samples_per_prompt"}},
      {"rollout.max_new_tokens",
       {"max_response_length", "max_completion_length", "max_tokens", "generate_max_len max_new_tokens"}},
      {"rollout.max_sequences", {"max_num_seqs", "", "", ""}},
      {"rollout.gpu_memory",
       {"gpu_memory_utilization", "vllm_gpu_memory_utilization", "gpu_memory_utilization",
        "vllm_gpu_memory_utilization"}},
      {"rollout.tensor_parallel",
       {"tensor_model_parallel_size", "vllm_tensor_parallel_size", "parallel.tp", "vllm_tensor_parallel_size"}},
      {"staleness.max_staleness", {"", "", "max_async_level async_level", ""}},
      {"train.learning_rate", {"optim.lr", "", "optim.lr", "actor_learning_rate"}},
      {"train.beta1", {"", "adam_beta1", "", ""}},
      {"train.beta2", {"", "adam_beta2", "", ""}},
      {"train.adam_eps", {"", "adam_epsilon", "", ""}},
      {"train.weight_decay", {"", "", "", "l2"}},
      {"train.max_grad_norm", {"grad_clip clip_grad", "", "max_norm", "max_norm"}},
      {"train.advantage", {"adv_estimator", "scale_rewards", "", "advantage_estimator"}},
      {"train.return_discount", {"algorithm.gamma", "", "", "gamma"}},
      {"train.overlong", {"", "mask_truncated_completions", "", ""}},
      {"train.overlong_cache", {"overlong_buffer.len", "", "", "overlong_buffer_len"}},
      {"train.overlong_factor", {"overlong_buffer.penalty_factor", "", "", "overlong_penalty_factor"}},
      {"train.policy_loss", {"loss_mode", "importance_sampling_level", "", "policy_loss_type"}},
      {"train.clip_low", {"clip_ratio_low clip_ratio", "epsilon", "", "eps_clip eps_clip_low_high"}},
      {"train.clip_high", {"clip_ratio_high", "epsilon_high", "", ""}},
      {"train.dual_clip", {"clip_ratio_c", "", "", "dual_clip"}},
      {"train.correction", {"", "vllm_importance_sampling_correction", "", "enable_vllm_is_correction"}},
      {"train.tis_cap", {"tis_imp_ratio_cap rollout_is_threshold", "vllm_importance_sampling_cap", "", ""}},
      {"train.aggregation", {"loss_agg_mode", "loss_type", "", ""}},
      {"train.kl_coef", {"kl_loss_coef", "beta", "", "init_kl_coef"}},
      {"train.kl_in", {"use_kl_in_reward use_kl_loss", "", "", "use_kl_loss"}},
      {"train.kl_estimator", {"kl_loss_type kl_penalty", "", "", ""}},
      {"train.entropy_coef", {"entropy_coeff", "", "", "entropy_loss_coef"}},
      {"train.updates_per_batch", {"ppo_epochs", "num_iterations", "", "max_epochs"}},
      {"train.micro_batch_tokens", {"ppo_max_token_len_per_gpu", "", "", "train_max_tokens_per_gpu"}},
      {"train.schedule", {"lr_scheduler_type warmup_style", "lr_scheduler_type", "", "lr_scheduler"}},
      {"train.warmup_updates", {"lr_warmup_steps", "warmup_steps", "warmup_steps", ""}},
      {"train.offload_params", {"param_offload", "", "", ""}},
      {"train.recompute", {"enable_gradient_checkpointing", "gradient_checkpointing", "", "gradient_checkpointing"}},
      {"checkpoint.every_steps", {"save_freq", "save_steps", "ckpt.interval", "save_steps"}},
      {"checkpoint.keep", {"max_actor_ckpt_to_keep", "save_total_limit", "ckpt.keep_last", "max_ckpt_num"}},
      {"checkpoint.dir", {"", "", "", "ckpt_path"}},
      {"eval.every_steps", {"test_freq", "eval_steps", "eval.interval", "eval_steps"}}};
  return *all;
}

std::string TranslatePeerKey(const std::string& path) {
  for (const PeerNames& entry : AllPeerNames()) {
    for (const std::string& names : entry.names) {
      for (const absl::string_view name : absl::StrSplit(names, ' ', absl::SkipEmpty())) {
        // The end of the path decides, because peers nest one name in several sections, such as verl's optim.lr.
        if (path == name || absl::EndsWith(path, absl::StrCat(".", name))) return entry.key;
      }
    }
  }
  return "";
}

}  // namespace syncopate::config
