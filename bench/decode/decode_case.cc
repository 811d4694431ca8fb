#include "bench/decode/decode_case.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "base/status.h"
#include "bench/decode/attention_case.h"
#include "bench/measure/figures.h"
#include "rollouter/cuda/decode/graph_decoder.h"

namespace syncopate::bench {
namespace {

using rollouter::DecoderRow;
using rollouter::DecoderStep;
using rollouter::GraphDecoder;
using SteadyClock = std::chrono::steady_clock;

constexpr double kSecondsARepeat = 0.15;

// Starts all sequences: sets their tables and sampling, and draws a first token.
absl::Status RunFirstStep(GraphDecoder& decoder, const std::vector<int32_t>& tables,
                          const std::vector<DecoderRow>& rows) {
  const int32_t each = static_cast<int32_t>(tables.size() / rows.size());
  std::vector<rollouter::TableSetting> table_settings;
  for (size_t i = 0; i < tables.size(); ++i) {
    const int32_t place = static_cast<int32_t>(i);
    table_settings.push_back({place / each, place % each, tables[i]});
  }
  std::vector<rollouter::SamplingSetting> sampling;
  for (const DecoderRow& row : rows) sampling.push_back({row.slot, {.seed = static_cast<uint64_t>(row.slot)}});
  SYNCOPATE_RETURN_IF_ERROR(decoder.Launch({.sampling = sampling, .tables = table_settings, .rows = rows}));
  return decoder.Await().status();
}

// Rows with a constant context: each step writes the same position again.
std::vector<DecoderRow> FixedRows(const DecodeCase& decode_case) {
  std::vector<DecoderRow> rows;
  for (int32_t i = 0; i < decode_case.rows; ++i) {
    rows.push_back({.slot = i, .token = i, .length = decode_case.context});
  }
  return rows;
}

struct LoopTimes {
  double step = 0;
  double host = 0;
};

// Runs `steps` steps as an engine does: the next one is launched before the tokens of the last one are awaited.
absl::StatusOr<LoopTimes> RunSteps(GraphDecoder& decoder, std::vector<DecoderRow>& rows, int steps) {
  const auto begin = SteadyClock::now();
  double host = 0;
  for (int step = 0; step < steps; ++step) {
    const auto launch_begin = SteadyClock::now();
    for (DecoderRow& row : rows) {
      row.token = -1;
      ++row.number;
    }
    SYNCOPATE_RETURN_IF_ERROR(decoder.Launch({.rows = rows}));
    host += SecondsSince(launch_begin);
    if (decoder.under_way() == GraphDecoder::kMostUnderWay) SYNCOPATE_RETURN_IF_ERROR(decoder.Await().status());
  }
  while (decoder.under_way() > 0) SYNCOPATE_RETURN_IF_ERROR(decoder.Await().status());
  return LoopTimes{SecondsSince(begin) / steps, host / steps};
}

}  // namespace

absl::StatusOr<DecodeTimes> TimeDecode(const NamedShape& named, const RandomModel& model,
                                       const DecodeCase& decode_case) {
  const std::vector<int32_t> tables = ShuffledTables(model.storage(), decode_case.rows, decode_case.context);
  const auto begin = SteadyClock::now();
  SYNCOPATE_ASSIGN_OR_RETURN(
      const std::unique_ptr<GraphDecoder> decoder,
      GraphDecoder::Create(
          {.shape = named.shape,
           .weights = model.weights(),
           .storage = model.storage(),
           .max_slots = decode_case.rows,
           .max_positions = decode_case.context,
           .rotations = rollouter::RotaryTable(decode_case.context, named.shape.heads.head_dim, named.rope_theta),
           .batch_sizes = {decode_case.rows},
           .chunk_sizes = {},
           .float32_logits = decode_case.float32_logits,
           .add_in_products = decode_case.add_in_products}));
  DecodeTimes times;
  times.create = SecondsSince(begin);
  times.device_bytes = decoder->device_bytes();
  std::vector<DecoderRow> rows = FixedRows(decode_case);
  SYNCOPATE_RETURN_IF_ERROR(RunFirstStep(*decoder, tables, rows));
  const model::CudaGraph& graph = decoder->GraphFor(decode_case.rows);
  SYNCOPATE_ASSIGN_OR_RETURN(const double once, graph.TimeLaunch(decoder->stream(), /*launches=*/5));
  const int steps = std::clamp(static_cast<int>(kSecondsARepeat / once), 5, 200);
  std::vector<double> on_device, by_clock, on_host;
  for (int i = 0; i < decode_case.repeats; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(const double step, graph.TimeLaunch(decoder->stream(), steps));
    on_device.push_back(step);
    SYNCOPATE_ASSIGN_OR_RETURN(const LoopTimes loop, RunSteps(*decoder, rows, steps));
    by_clock.push_back(loop.step);
    on_host.push_back(loop.host);
  }
  times.graph = Median(on_device);
  times.engine = Median(by_clock);
  times.host = Median(on_host);
  return times;
}

}  // namespace syncopate::bench
