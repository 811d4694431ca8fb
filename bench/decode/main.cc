// syncopate-bench-decode [MODELS [BATCHES [CONTEXT [REPEATS]]]]: decode steps of random weights on the first GPU, one
// JSON object a line as each case ends.
//
//   MODELS    names of model/presets.h with commas between, default "qwen2.5-0.5b,qwen2.5-1.5b,qwen2.5-7b"
//   BATCHES   default "256,512"
//   CONTEXT   tokens of each sequence, default 1024
//   REPEATS   number of repeats; the median is reported, default 5
//
// Each case measures the graph alone, the loop that an engine runs, and the parts alone. The first batch of a model is
// also run with bf16 logits, and with residuals added by the norm's kernel. bench/generate measures the whole engine.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "bench/decode/attention_case.h"
#include "bench/decode/decode_case.h"
#include "bench/decode/products_case.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

struct Arguments {
  std::vector<NamedShape> models;
  std::vector<int32_t> batches;
  int32_t context = 1024;
  int repeats = 5;
};

absl::Status BadArguments(const std::string& what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_ARGUMENT",
               absl::StrCat(what, "; the top of bench/decode/main.cc says how to call it"));
}

absl::StatusOr<Arguments> ReadArguments(int argc, char** argv) {
  auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  Arguments arguments;
  for (const std::string& name :
       std::vector<std::string>(absl::StrSplit(argument(1, "qwen2.5-0.5b,qwen2.5-1.5b,qwen2.5-7b"), ','))) {
    SYNCOPATE_ASSIGN_OR_RETURN(NamedShape shape, FindShape(name));
    arguments.models.push_back(std::move(shape));
  }
  for (const std::string& batch : std::vector<std::string>(absl::StrSplit(argument(2, "256,512"), ','))) {
    int32_t rows = 0;
    if (!absl::SimpleAtoi(batch, &rows) || rows < 1 || rows > 1024) {
      return BadArguments(absl::StrCat("'", batch, "' is no batch of 1 to 1024"));
    }
    arguments.batches.push_back(rows);
  }
  if (!absl::SimpleAtoi(argument(3, "1024"), &arguments.context) || arguments.context < 1 ||
      !absl::SimpleAtoi(argument(4, "5"), &arguments.repeats) || arguments.repeats < 1) {
    return BadArguments("context and repeats are numbers from 1");
  }
  return arguments;
}

void Print(const json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

double Milliseconds(double seconds) { return std::round(seconds * 1e7) / 1e4; }

absl::Status RunCase(const NamedShape& named, const RandomModel& model, const DecodeCase& decode_case) {
  SYNCOPATE_ASSIGN_OR_RETURN(const DecodeTimes times, TimeDecode(named, model, decode_case));
  const StepLimits limits = MakeLimits(named.shape, decode_case.rows, decode_case.context);
  Print({{"event", "decode"},
         {"model", named.name},
         {"batch", decode_case.rows},
         {"context", decode_case.context},
         {"logits", decode_case.float32_logits ? "fp32" : "bf16"},
         {"residual", decode_case.add_in_products ? "in products" : "in norms"},
         {"graph_ms", Milliseconds(times.graph)},
         {"graph_tokens_per_second", std::round(decode_case.rows / times.graph)},
         {"engine_ms", Milliseconds(times.engine)},
         {"engine_tokens_per_second", std::round(decode_case.rows / times.engine)},
         {"host_ms", Milliseconds(times.host)},
         {"limit_ms", Milliseconds(limits.total())},
         {"share_of_limit", std::round(limits.total() / times.engine * 1000) / 1000},
         {"create_s", Milliseconds(times.create) / 1000},
         {"device_mib", times.device_bytes >> 20}});
  return absl::OkStatus();
}

absl::Status RunParts(const NamedShape& named, const RandomModel& model, int32_t rows, const Arguments& arguments) {
  SYNCOPATE_ASSIGN_OR_RETURN(const double attention,
                             TimeAttention(named, model, rows, arguments.context, arguments.repeats));
  const StepLimits limits = MakeLimits(named.shape, rows, arguments.context);
  json line = {{"event", "parts"},
               {"model", named.name},
               {"batch", rows},
               {"attention_ms", Milliseconds(attention)},
               {"attention_share_of_limit", std::round(limits.attention / attention * 1000) / 1000},
               {"products_limit_ms", Milliseconds(limits.products)}};
  for (bool float32 : {true, false}) {
    SYNCOPATE_ASSIGN_OR_RETURN(const PartTimes times, TimeProducts(named, model, rows, float32, arguments.repeats));
    const std::string logits = float32 ? "_fp32" : "_bf16";
    line["layer_products_ms"] = Milliseconds(times.layers);
    line[absl::StrCat("head_ms", logits)] = Milliseconds(times.head);
    line[absl::StrCat("sampler_ms", logits)] = Milliseconds(times.sampler);
  }
  Print(line);
  return absl::OkStatus();
}

absl::Status RunModel(const NamedShape& named, const Arguments& arguments) {
  const int32_t most = *std::max_element(arguments.batches.begin(), arguments.batches.end());
  SYNCOPATE_ASSIGN_OR_RETURN(
      const RandomModel model,
      RandomModel::Create(named, int64_t{most} * (arguments.context + rollouter::kTokensPerBlock)));
  for (int32_t rows : arguments.batches) {
    const DecodeCase standard = {.rows = rows, .context = arguments.context, .repeats = arguments.repeats};
    SYNCOPATE_RETURN_IF_ERROR(RunCase(named, model, standard));
    if (rows == arguments.batches.front()) {
      DecodeCase other = standard;
      other.float32_logits = false;
      SYNCOPATE_RETURN_IF_ERROR(RunCase(named, model, other));
      other = standard;
      other.add_in_products = false;
      SYNCOPATE_RETURN_IF_ERROR(RunCase(named, model, other));
    }
    SYNCOPATE_RETURN_IF_ERROR(RunParts(named, model, rows, arguments));
  }
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Arguments arguments, ReadArguments(argc, argv));
  for (const NamedShape& named : arguments.models) {
    if (absl::Status status = RunModel(named, arguments); !status.ok()) return Annotate(status, named.name);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace syncopate::bench

int main(int argc, char** argv) {
  const absl::Status status = syncopate::bench::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "syncopate-bench-decode: %s\n", std::string(status.message()).c_str());
  return 1;
}
