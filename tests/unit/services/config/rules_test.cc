#include "services/config/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/config/run_config.h"

namespace syncopate::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The keys that the problems name, with the reasons.
std::vector<std::string> Broken(const std::vector<std::string>& overrides) {
  std::vector<std::string> broken;
  for (const ConfigProblem& problem : ParseRunConfig("", "f", overrides).problems) {
    broken.push_back(problem.key + ": " + problem.expected);
  }
  return broken;
}

struct Case {
  std::vector<std::string> overrides;
  const char* broken;  // a part of the one problem's text; nullptr: no problem
};

class RulesTest : public testing::TestWithParam<Case> {};

TEST_P(RulesTest, ReportsWhatCannotWorkAndNothingElse) {
  if (GetParam().broken == nullptr) {
    EXPECT_THAT(Broken(GetParam().overrides), IsEmpty());
  } else {
    EXPECT_THAT(Broken(GetParam().overrides), ElementsAre(HasSubstr(GetParam().broken)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    StopsAndSets, RulesTest,
    testing::Values(Case{{"rollout.stop=[5]"}, nullptr},
                    Case{{"rollout.stop=[\"a\"]"}, "rollout.stop: token ids alone"},
                    Case{{"rollout.stop=</a>"}, "rollout.stop: a JSON list"},
                    Case{{"eval.sets=a.jsonl n=2"}, "eval.sets: sets as"},
                    Case{{"eval.sets=a: a.jsonl n=2"}, "eval.sets: nothing without data.files"},
                    Case{{"eval.sets=a: a.jsonl n=2 temperature=0"}, "eval.sets: a temperature above 0"},
                    Case{{"eval.sets=a: a.jsonl, a: b.jsonl"}, "a is there twice"},
                    Case{{"eval.sets=a: a.jsonl k=2"}, "k=2 is none"},
                    Case{{"eval.sets=a: a.jsonl n=0"}, "another value in the word n=0"},
                    Case{{"eval.sets=a b: a.jsonl"}, "\"a b\" is none"}, Case{{"eval.sets=a:"}, "a file behind"},
                    Case{{"eval.deadline=90s"}, nullptr}));
constexpr const char* kGuess = "data.task=guess";
constexpr const char* kPlay = "environment.name=guess";
constexpr const char* kTotal = "rollout.max_total_tokens=12";
INSTANTIATE_TEST_SUITE_P(
    Play, RulesTest,
    testing::Values(Case{{kGuess, kPlay, kTotal, "reward.name=environment"}, nullptr},
                    Case{{kGuess, kPlay, kTotal, "reward.name=dense"}, nullptr},
                    Case{{"environment.name=chess"}, "environment.name: "},
                    Case{{kGuess, kPlay, kTotal, "environment.command=w", "reward.timeout=11m"},
                         "reward.timeout: less than data.lease_timeout 10m"},
                    Case{{kPlay, "rollout.max_total_tokens=8"}, "environment.name: guess with data.task guess"},
                    Case{{kGuess}, "data.task: environment.name to be guess with data.task guess"},
                    Case{{kGuess, kPlay}, "rollout.max_total_tokens to be at least rollout.max_new_tokens 2"},
                    Case{{kGuess, kPlay, "rollout.max_total_tokens=15"},
                         "model.max_position_embeddings to be at least 17"},
                    Case{{kGuess, kPlay, kTotal, "reward.name=overlong", "reward.overlong_buffer=1"},
                         "reward.name: a reward without overlong"},
                    Case{{"reward.name=environment"}, "environment.name to be the environment whose rewards"}));
constexpr const char* kServes = "endpoint.listen=127.0.0.1:8000";
INSTANTIATE_TEST_SUITE_P(
    Endpoint, RulesTest,
    testing::Values(
        Case{{kServes}, nullptr}, Case{{"endpoint.listen=127.0.0.1"}, "endpoint.listen: host:port"},
        Case{{"endpoint.listen=0.0.0.0:8000"}, "endpoint.listen: a loopback address"},
        Case{{"endpoint.listen=0.0.0.0:8000", "run.insecure_bind=true"}, "security.token_file allow others"},
        Case{{"endpoint.listen=0.0.0.0:8000", "run.insecure_bind=true", "security.token_file=a"}, nullptr},
        Case{{kServes, "trainer.listen=127.0.0.1:8000"}, "endpoint.listen: an address that trainer.listen"},
        Case{{kServes, "endpoint.sequences=16"}, nullptr},
        Case{{kServes, "endpoint.sequences=256"}, "endpoint.sequences: at most 240"},
        Case{{kServes, "endpoint.sequences=16", "rollout.max_groups_in_flight=4"}, "endpoint.sequences: 0 with"},
        Case{{"endpoint.sequences=16"}, nullptr}));
INSTANTIATE_TEST_SUITE_P(
    Socket, RulesTest,
    testing::Values(Case{{"environment.socket_mode=0660", "environment.socket_group=agents"}, nullptr},
                    Case{{"environment.socket_mode=0660"}, nullptr},
                    Case{{"environment.socket_group=agents"}, "environment.socket_mode to be 0660"},
                    Case{{"environment.socket_mode=0660", "environment.socket_group=--x"}, "environment.socket_group"},
                    Case{{"environment.socket_mode=0666"}, "environment.socket_mode"}));
INSTANTIATE_TEST_SUITE_P(ToolFormat, RulesTest,
                         testing::Values(Case{{"model.tool_format=qwen3.5"}, nullptr},
                                         Case{{"model.tool_format=qwen"}, "model.tool_format: one of auto"}));
constexpr const char* kTls = "security.tls_ca=ca.crt";
INSTANTIATE_TEST_SUITE_P(
    WorkersAddress, RulesTest,
    testing::Values(
        Case{{"environment.address=10.0.0.7:7080"}, "environment.address: a socket or a loopback address"},
        Case{{"environment.address=10.0.0.7:7080", "run.insecure_bind=true"}, nullptr},
        Case{{"environment.address=10.0.0.7:7080", kTls, "security.tls_cert=c", "security.tls_key=k"}, nullptr},
        Case{{"environment.address=127.0.0.1:7080"}, nullptr},
        Case{{"environment.address=unix:/a.sock,10.0.0.7:7080"}, "environment.address: a socket or a loopback address"},
        Case{{"environment.address=unix:/a.sock,unix:/b.sock"}, nullptr},
        Case{{"environment.address=unix:/a.sock,unix:/a.sock"}, "a different address for each worker"},
        Case{{"environment.workers=2"}, "1 without a command"},
        Case{{"environment.workers=2", "environment.command=w"}, nullptr},
        Case{{"environment.workers=2", "environment.command=w", "environment.address=unix:/a.sock"},
             "an address for each of the 2 workers"}));
constexpr const char* kKey = "reward.judge_key_file=key";
INSTANTIATE_TEST_SUITE_P(
    Judge, RulesTest,
    testing::Values(Case{{"reward.judge_url=https://judge.example/v1", kKey}, nullptr},
                    Case{{"reward.judge_url=http://127.0.0.1:8000/v1", kKey}, nullptr},
                    Case{{"reward.judge_url=http://judge:8000/v1", kKey}, "would be sent in plaintext"},
                    Case{{"reward.judge_url=http://127.0.0.1@judge/v1", kKey}, "would be sent in plaintext"},
                    Case{{"reward.judge_url=http://judge:8000/v1", kKey, "run.insecure_bind=true"}, nullptr},
                    Case{{"reward.judge_url=http://judge:8000/v1"}, nullptr},
                    Case{{"reward.judge_url=judge:8000"}, "reward.judge_url: an address that begins with http://"},
                    Case{{"reward.judge_prompt=Is it good?"}, "it does not contain {answer}"},
                    Case{{"reward.judge_prompt=Is {answer} good?"}, nullptr},
                    Case{{"reward.judge_pattern=(a"}, "reward.judge_pattern: a regular expression"}));
INSTANTIATE_TEST_SUITE_P(Run, RulesTest,
                         testing::Values(Case{{"run.name=a/b"}, "run.name: a name of letters"},
                                         Case{{"run.name="}, "run.name"}, Case{{"run.name=.."}, "run.name"},
                                         Case{{"run.name=qwen3-0.6B_a"}, nullptr},
                                         Case{{"run.resume=true"}, "run.resume: false, or run.dir"},
                                         Case{{"run.resume=true", "run.dir=runs/x"}, nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Memory, RulesTest,
    testing::Values(
        Case{{"train.offload_params=true", "train.empty_cache_after_update=always"}, nullptr},
        Case{{"train.empty_cache_after_update=sometimes"}, "train.empty_cache_after_update: "},
        Case{{"train.offload_reference=true"}, "train.offload_reference: false, as without train.kl_coef"},
        Case{{"train.offload_reference=true", "train.kl_coef=0.1"}, nullptr},
        Case{{"train.offload_optimizer_for_logprob=true"}, "train.offload_optimizer_for_logprob: false, as no step"},
        Case{{"train.offload_optimizer_for_logprob=true", "train.updates_per_batch=2"}, nullptr},
        Case{{"train.offload_optimizer_for_logprob=true", "train.updates_per_batch=2", "train.proximal=a3po"},
             "train.offload_optimizer_for_logprob: false, as no step"},
        Case{{"train.offload_optimizer_for_logprob=true", "train.kl_coef=0.1"}, nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Lora, RulesTest,
    testing::Values(
        Case{{"lora.rank=8", "lora.alpha=16", "lora.scaling=rslora", "lora.target_modules=q_proj,v_proj"}, nullptr},
        Case{{"lora.path=adapters"}, nullptr},
        Case{{"lora.path=adapters", "lora.rank=8"}, "lora.rank: 0, as lora.path says it"},
        Case{{"lora.path=adapters", "lora.alpha=8"}, "lora.alpha: 0, as lora.path says it"},
        Case{{"lora.alpha=8"}, "lora.alpha: 0, as lora.rank is 0: all weights are trained"},
        Case{{"lora.scaling=rslora"}, "lora.scaling: alpha_over_rank, as lora.rank is 0"},
        Case{{"lora.target_modules=q_proj"}, "lora.target_modules: all-linear, as lora.rank is 0"},
        Case{{"lora.rank=-1"}, "lora.rank: "},
        // No step changes the base, and the base is the reference.
        Case{{"lora.rank=8", "train.sft_steps=5", "train.kl_coef=0.1"}, nullptr},
        Case{{"lora.rank=8", "train.kl_coef=0.1", "train.offload_reference=true"}, "train.offload_reference: false"}));

INSTANTIATE_TEST_SUITE_P(
    Devices, RulesTest,
    testing::Values(
        Case{{"train.device=cuda:0", "rollout.device=cuda:1", "sync.transport=ipc"}, nullptr},
        Case{{"train.device=cuda", "rollout.device=auto", "sync.transport=nccl", "sync.install=in_place"}, nullptr},
        Case{{"train.device=gpu"}, "train.device: auto, cpu, cuda"},
        Case{{"rollout.device=cuda:"}, "rollout.device: auto, cpu, cuda"},
        Case{{"rollout.device=cuda:x"}, "rollout.device: auto, cpu, cuda"},
        Case{{"rollout.device=cuda:1", "rollout.tensor_parallel=2"}, "as each rank needs a GPU of its own"},
        Case{{"rollout.device=cuda", "rollout.tensor_parallel=2"}, nullptr},
        Case{{"sync.transport=nccl"}, "sync.transport: auto or grpc, as nccl goes from GPU to GPU and train.device"},
        Case{{"train.device=cuda", "sync.transport=ipc"}, "and rollout.device is cpu"},
        Case{{"sync.install=remap"}, "sync.install: auto, swap, borrowed or in_place"},
        Case{{"sync.install=swap"}, nullptr}, Case{{"sync.install=in_place"}, nullptr},
        Case{{"sync.install=in_place", "rollout.tensor_parallel=2"}, nullptr},
        Case{{"rollout.device=cuda", "sync.install=swap"}, "sync.install: auto, remap, borrowed or in_place"},
        Case{{"sync.install=borrowed"}, nullptr}, Case{{"sync.install=borrowed", "rollout.device=cuda"}, nullptr},
        Case{{"sync.install=borrowed", "lora.rank=4"}, nullptr},
        Case{{"sync.install=borrowed", "rollout.tensor_parallel=2"},
             "sync.install: auto or in_place, as only a rollouter of one rank"},
        Case{{"sync.install=borrowed", "run.share_gpu=true"}, "sync.install: auto with run.share_gpu"}));

// The configuration reports the cases that trainer/loss refuses, by their keys; trainer/loss has tests of every case.
INSTANTIATE_TEST_SUITE_P(
    Algorithms, RulesTest,
    testing::Values(
        Case{{"train.proximal=bypass"}, "importance twice"},
        Case{{"train.proximal=bypass", "train.correction=geometric"}, nullptr},
        Case{{"train.policy_loss=aipo"}, "none, seq_mis or geometric, which only mask, as aipo contains the ratio"},
        Case{{"train.policy_loss=aipo", "train.correction=none"}, nullptr},
        Case{{"train.policy_loss=dppo", "train.correction=none", "train.proximal=a3po"},
             "train.proximal: auto, as dppo"},
        Case{{"train.advantage=dr_grpo"}, nullptr},
        Case{{"train.advantage=dr_grpo", "train.aggregation=token_mean"}, "the other half of dr_grpo"},
        Case{{"train.policy_loss=cispo", "train.dual_clip=3"}, "train.dual_clip: 0, as it bounds"},
        Case{{"train.kl_coef=0.1", "train.kl_estimator=k1"}, "train.kl_estimator: k3_plus or k2"},
        Case{{"train.kl_coef=0.1", "train.kl_estimator=k1", "train.kl_in=reward"}, nullptr},
        Case{{"train.overlong=dapo"}, "train.overlong_cache to be from 1 to the longest answer, 5"},
        Case{{"train.overlong=dapo", "train.overlong_cache=2"}, nullptr},
        Case{{"train.advantage=gdpo", "train.reward_weights=right"}, "train.reward_weights: parts and their weights"},
        Case{{"train.reward_weights=right=1"}, "train.reward_weights: nothing, as gdpo alone"},
        Case{{"train.advantage=rloo", "rollout.samples=1"}, "as rloo compares the answers"},
        Case{{"train.advantage=reinforce_pp", "rollout.samples=1", "train.return_discount=0.99"}, nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Addresses, RulesTest,
    testing::Values(Case{{"trainer.listen=nowhere"}, "trainer.listen: host:port"},
                    Case{{"synchronizer.address=nowhere"}, "synchronizer.address: host:port"},
                    Case{{"synchronizer.address=nowhere", "synchronizer.listen=127.0.0.1:0"}, "synchronizer.address"},
                    Case{{"rollouter.advertise=x"}, "rollouter.advertise: host:port"},
                    Case{{"metrics.trainer_listen=10.0.0.1:9090"}, "a loopback address"},
                    Case{{"metrics.trainer_listen=10.0.0.1:9090", "run.insecure_bind=true"}, nullptr},
                    Case{{"trainer.listen=0.0.0.0:1", "run.insecure_bind=true"}, "trainer.advertise to name one"},
                    Case{{"trainer.listen=0.0.0.0:1", "run.insecure_bind=true", "trainer.advertise=t:1"}, nullptr},
                    Case{{"synchronizer.listen=0.0.0.0:1", "run.insecure_bind=true"}, nullptr},
                    Case{{"trainer.ranks_listen=nowhere"}, "trainer.ranks_listen: host:port"},
                    Case{{"trainer.ranks_listen=10.0.0.1:0"}, "a loopback address"},
                    Case{{"trainer.ranks_listen=0.0.0.0:0", "run.insecure_bind=true"}, nullptr},
                    Case{{"trainer.listen=127.0.0.1:7070", "synchronizer.address=127.0.0.1:7070"},
                         "that synchronizer.address does not use"},
                    Case{{"synchronizer.address=sync.rl:7070", "synchronizer.listen=127.0.0.1:7070"}, nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Turns, RulesTest,
    testing::Values(Case{{"run.share_gpu=true"}, nullptr},
                    Case{{"run.share_gpu=true", "rollout.host_kv_memory=1", "sync.transport=grpc"}, nullptr},
                    Case{{"run.share_gpu=true", "sync.transport=nccl", "train.device=auto", "rollout.device=auto"},
                         "sync.transport: auto, ipc or grpc, as NCCL does not connect two processes on one device"},
                    Case{{"run.share_gpu=true", "trainer.world=2"}, nullptr},
                    Case{{"run.share_gpu=true", "rollout.tensor_parallel=2"}, nullptr},
                    Case{{"run.share_gpu=true", "rollout.tensor_parallel=2", "trainer.world=2"}, nullptr},
                    Case{{"run.share_gpu=true", "train.objective=sft"}, "run.share_gpu: false with"}));

INSTANTIATE_TEST_SUITE_P(
    Security, RulesTest,
    testing::Values(Case{{"security.tls_cert=a", "security.tls_key=b"}, "all three files, or none of them"},
                    Case{{"security.tls_ca=c"}, "all three files, or none of them"},
                    Case{{"security.tls_cert=a", "security.tls_key=b", "security.tls_ca=c"}, nullptr},
                    Case{{"security.tls_cert=a", "security.tls_key=b", "security.tls_ca=c",
                          "synchronizer.listen=0.0.0.0:1", "metrics.trainer_listen=0.0.0.0:2"},
                         nullptr},
                    Case{{"security.token_file=t"}, nullptr},
                    Case{{"security.token_file=t", "synchronizer.listen=0.0.0.0:1"}, "a loopback address"},
                    Case{{"security.tls_reload=999ms"}, "at least 1s"},
                    Case{{"security.trust_domain=Prod"}, "lower-case letters"},
                    Case{{"security.trust_domain=prod/role"}, "lower-case letters"}));

INSTANTIATE_TEST_SUITE_P(
    Model, RulesTest,
    testing::Values(Case{{"model.num_key_value_heads=3"}, "model.num_key_value_heads: a divisor of"},
                    Case{{"model.num_key_value_heads=2"}, nullptr}, Case{{"model.head_dim=15"}, "an even number"},
                    Case{{"model.hidden_size=65", "model.intermediate_size=191"}, nullptr},
                    Case{{"model.context_length=32"}, "model.context_length: 0, as without model.path"},
                    Case{{"model.path=m", "model.context_length=32"}, nullptr},
                    Case{{"model.path=m", "model.context_length=10", "rollout.max_new_tokens=5"},
                         "model.context_length: 0, or at least 11"},
                    Case{{"model.path=m", "rollout.max_new_tokens=500"}, nullptr},
                    Case{{"model.path=m", "model.dtype=bfloat16"}, nullptr},
                    Case{{"model.path=m", "model.hidden_size=64"}, "model.hidden_size: to be left out"},
                    Case{{"model.learned_positions=false", "model.path=m"}, "model.learned_positions: to be left out"},
                    Case{{"model.vocab_size=10"}, "model.vocab_size: 0 or at least the 11 tokens"},
                    Case{{"model.vocab_size=11"}, nullptr}, Case{{"model.vocab_size=4096"}, nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Data, RulesTest,
    testing::Values(Case{{"model.max_position_embeddings=10"}, "model.max_position_embeddings: at least 11"},
                    Case{{"model.max_position_embeddings=11"}, nullptr},
                    Case{{"rollout.max_new_tokens=4"},
                         "rollout.max_new_tokens: at least 5, the tokens of a right answer"},
                    Case{{"rollout.max_new_tokens=10"}, nullptr},
                    Case{{"rollout.max_new_tokens=11"}, "at least 17: a prompt of 6 tokens and 11 new ones"},
                    Case{{"train.micro_batch_tokens=10"}, "train.micro_batch_tokens: at least 11"},
                    Case{{"data.batch_groups=65536", "rollout.samples=17"}, "batch_groups x samples of at most"},
                    Case{{"data.lease_stall=2900ms"}, "data.lease_stall: at least 3 x sync.heartbeat 1s"},
                    Case{{"data.lease_stall=3s"}, nullptr},
                    Case{{"data.lease_timeout=29s"}, "data.lease_timeout: at least data.lease_stall 30s"},
                    Case{{"data.lease_timeout=30s"}, nullptr}, Case{{"data.alphabet=100"}, nullptr},
                    Case{{"data.task=sort"}, nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Rollout, RulesTest,
    testing::Values(Case{{"rollout.samples=1"}, "rollout.samples: at least 2"}, Case{{"rollout.samples=2"}, nullptr},
                    Case{{"rollout.top_p=0.9"}, "rollout.top_p: 1"}, Case{{"rollout.top_k=50"}, "rollout.top_k: 0"},
                    Case{{"rollout.max_sequences=15"}, "rollout.max_sequences: at least rollout.samples 16"},
                    Case{{"rollout.max_sequences=16"}, nullptr}));

INSTANTIATE_TEST_SUITE_P(Train, RulesTest,
                         testing::Values(Case{{"train.max_grad_growth=1"}, "train.max_grad_growth: 0, or more than 1"},
                                         Case{{"train.max_grad_growth=0"}, nullptr},
                                         Case{{"train.max_grad_growth=1.5"}, nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Supervised, RulesTest,
    testing::Values(
        Case{{"train.objective=sft"}, nullptr}, Case{{"train.sft_steps=10", "run.steps=11"}, nullptr},
        Case{{"train.sft_steps=10", "run.steps=10"}, "train.sft_steps: fewer than run.steps 10"},
        Case{{"train.sft_steps=1", "train.objective=sft"}, "train.sft_steps: 0, as with objective sft"},
        Case{{"train.sft_steps=1", "train.kl_coef=0.1"}, nullptr},
        Case{{"train.objective=sft", "train.kl_coef=0.1"}, "train.kl_coef: 0, as with objective sft"},
        Case{{"data.response_field=text", "data.files=a.jsonl", "model.path=m"},
             "data.response_field: empty, as no step of this run is supervised"},
        Case{{"data.response_field=text", "train.sft_steps=1"}, "data.response_field: empty, or data.files files"},
        Case{{"data.response_field=text", "data.files=a.jsonl", "model.path=m", "train.sft_steps=1"}, nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Ranks, RulesTest,
    testing::Values(Case{{"trainer.world=4", "train.device=cpu"}, nullptr},
                    Case{{"trainer.world=2", "train.device=cuda"}, nullptr},
                    Case{{"trainer.world=2", "trainer.rank=1", "trainer.rank0=127.0.0.1:7071"}, nullptr},
                    Case{{"trainer.world=2", "trainer.rank=2"}, "a rank below trainer.world"},
                    Case{{"trainer.world=2", "trainer.rank0=somewhere"}, "trainer.rank0: host:port"},
                    Case{{"rollouter.name=trainer-1"}, "rollouter.name: another name"},
                    Case{{"rollouter.name=synchronizer-0"}, "rollouter.name: another name"},
                    Case{{"rollouter.name=trainer-a"}, nullptr}));

TEST(UpdatesTest, ASupervisedStepIsOneUpdate) {
  v1::RunConfig config;
  config.mutable_run()->set_steps(10);
  config.mutable_train()->set_updates_per_batch(4);
  EXPECT_EQ(MakeUpdates(config), 40);
  config.mutable_train()->set_sft_steps(3);
  EXPECT_EQ(MakeUpdates(config), 3 + 7 * 4);
  config.mutable_train()->set_objective("sft");
  EXPECT_EQ(MakeUpdates(config), 10);
}

INSTANTIATE_TEST_SUITE_P(
    Staleness, RulesTest,
    testing::Values(Case{{"staleness.target_staleness=4.5"}, "from 0 to max_staleness 4"},
                    Case{{"staleness.target_staleness=-0.5"}, "staleness.target_staleness: -1, or"},
                    Case{{"staleness.target_staleness=4"}, nullptr}, Case{{"staleness.target_staleness=0.5"}, nullptr},
                    Case{{"staleness.max_staleness=0"}, nullptr}, Case{{"sync.every_steps=5"}, nullptr},
                    Case{{"sync.every_steps=6"}, "at most max_staleness + 1 = 5"},
                    Case{{"sync.every_steps=2", "staleness.max_staleness=0"}, "sync.every_steps: at most"}));

INSTANTIATE_TEST_SUITE_P(
    SyncAndEval, RulesTest,
    testing::Values(Case{{"sync.bucket_bytes=1000"}, "a multiple of 256"}, Case{{"sync.bucket_bytes=256"}, nullptr},
                    Case{{"sync.suspect_after=1s"}, "longer than sync.heartbeat 1s"},
                    Case{{"sync.dead_after=3s"}, "longer than sync.suspect_after 3s"},
                    Case{{"sync.heartbeat=100ms", "sync.suspect_after=300ms", "sync.dead_after=0.5s"}, nullptr},
                    Case{{"sync.prepare_deadline=10s"}, "shorter than sync.deadline 10s"},
                    Case{{"sync.prepare_deadline=3s", "sync.deadline=4s"}, nullptr},
                    Case{{"sync.give_up_after=9s"}, "at least sync.deadline 10s"},
                    Case{{"sync.give_up_after=10s"}, nullptr},
                    Case{{"eval.show_samples=4", "eval.prompts=3"}, "eval.show_samples: at most eval.prompts 3"}));

TEST(TaskShapeTest, CountsSpecialTokens) {
  v1::DataSection data;
  data.set_length(4);
  data.set_alphabet(8);
  data.set_task("reverse");
  EXPECT_EQ(GetShape(data).prompt_tokens, 6);  // the prompt is BOS x1..x4 SEP
  EXPECT_EQ(GetShape(data).answer_tokens, 5);  // the answer is y1..y4 EOS
  EXPECT_EQ(GetShape(data).vocabulary, 11);
  data.set_task("add");
  EXPECT_EQ(GetShape(data).prompt_tokens, 10);  // the prompt is BOS, two numbers of four digits, SEP
  EXPECT_EQ(GetShape(data).answer_tokens, 6);   // the answer is five digits, EOS
  EXPECT_EQ(GetShape(data).vocabulary, 13);
  data.set_task("guess");
  EXPECT_EQ(GetShape(data).prompt_tokens, 2);
  EXPECT_EQ(GetShape(data).answer_tokens, 2);  // an answer is a number and the end of the turn
  EXPECT_EQ(GetShape(data).vocabulary, 38);
}

}  // namespace
}  // namespace syncopate::config
