#include "trainer/actor/sharded_units.h"

#include <algorithm>

#include "model/arena_parts.h"

namespace syncopate::trainer {
namespace {

absl::Status GatherInto(const FlatShards& shards, int unit, const at::Tensor& local, Communicator& ranks,
                        const at::Tensor& into) {
  const FlatShards::Unit& one = shards.unit(unit);
  const at::Tensor mine = local.narrow(0, one.local_begin, one.shard);
  return ranks.AllGather(mine.data_ptr(), into.data_ptr(), static_cast<int64_t>(mine.nbytes()));
}

}  // namespace

UnitBuffers::UnitBuffers(const model::ModelConfig& config, const Manifest& manifest, const FlatShards& shards,
                         const at::TensorOptions& options, int first_unit) {
  int64_t layer = 0;
  for (int unit = std::max(1, first_unit); unit < shards.output_unit(); ++unit) {
    layer = std::max(layer, shards.unit(unit).shard);
  }
  // Two buffers, for layers in turn; each unit with the vocabulary has one of its own, as it is needed at both ends of
  // a step, and so have the adapters, which each layer needs.
  const at::Tensor of_layers = at::zeros({2, layer * shards.world()}, options);
  std::vector<model::ArenaPart> parts;
  for (int unit = 0; unit < shards.units(); ++unit) {
    if (unit < first_unit) {
      memory_.emplace_back();
      continue;
    }
    const int64_t elements = shards.unit(unit).shard * shards.world();
    const bool is_layer = unit != FlatShards::kEmbeddings && unit < shards.output_unit();
    memory_.push_back(is_layer ? of_layers[unit % 2].narrow(0, 0, elements) : at::zeros({elements}, options));
    parts.push_back({shards.bytes(unit), memory_.back()});
  }
  views_ = model::ViewWeights(config, manifest, parts);
}

GatheredWeights::GatheredWeights(const model::ModelConfig& config, const Manifest& manifest, const FlatShards& shards,
                                 const at::Tensor& local, Communicator& ranks)
    : shards_(shards),
      local_(local),
      ranks_(ranks),
      buffers_(config, manifest, shards, local.options()),
      side_(local.device()),
      in_buffer_(static_cast<size_t>(shards.units()), false),
      gathered_(in_buffer_.size()) {}

absl::Status GatheredWeights::Acquire(int unit) {
  SYNCOPATE_RETURN_IF_ERROR(Expect(unit));
  side_.Await(gathered_[static_cast<size_t>(unit)]);
  return absl::OkStatus();
}

// What was computed with the buffer's former unit is on the current stream by now.
absl::Status GatheredWeights::Expect(int unit) {
  if (in_buffer_[static_cast<size_t>(unit)]) return absl::OkStatus();
  // Beside the stream that computes.
  SYNCOPATE_ASSIGN_OR_RETURN(gathered_[static_cast<size_t>(unit)], side_.Run([this, unit] {
    return GatherInto(shards_, unit, local_, ranks_, buffers_.ForUnit(unit));
  }));
  const at::Tensor here = buffers_.ForUnit(unit);
  for (int other = 0; other < shards_.units(); ++other) {
    if (buffers_.ForUnit(other).data_ptr() == here.data_ptr()) in_buffer_[static_cast<size_t>(other)] = other == unit;
  }
  return absl::OkStatus();
}

ReducedGradients::ReducedGradients(const model::ModelConfig& config, const Manifest& manifest, const FlatShards& shards,
                                   const at::Tensor& local, Communicator& ranks, at::ScalarType reduce)
    : shards_(shards),
      local_(local),
      ranks_(ranks),
      buffers_(config, manifest, shards, local.options(), shards.first_trained_unit()),
      side_(local.device()),
      added_(static_cast<size_t>(shards.units())),
      empty_(added_.size(), false) {
  int64_t largest = 0;
  for (int unit = shards.first_trained_unit(); unit < shards.units(); ++unit)
    largest = std::max(largest, shards.unit(unit).shard);
  reduced_ = at::empty({largest}, local.options().dtype(reduce));
  if (reduce != at::kFloat) rounded_ = at::empty({largest * shards.world()}, reduced_.options());
}

void ReducedGradients::Zero() {
  empty_.assign(empty_.size(), true);
  // A layer's gradient is cleared when the layer is acquired; these units sum over all micro-batches and are reduced
  // once.
  for (int unit : GetLateUnits()) buffers_.ForUnit(unit).zero_();
}

std::vector<int> ReducedGradients::GetLateUnits() const {
  if (is_trained(FlatShards::kEmbeddings)) return {shards_.output_unit(), FlatShards::kEmbeddings};
  return {shards_.first_trained_unit()};
}

at::Tensor ReducedGradients::GetShard(int unit) const {
  const FlatShards::Unit& one = shards_.unit(unit);
  return local_.narrow(0, one.local_begin - shards_.trained_begin(), one.shard);
}

absl::Status ReducedGradients::Acquire(int unit) {
  if (!is_layer(unit)) return absl::OkStatus();
  // Whatever layer had this buffer last must have been reduced and added before it is written again.
  for (int other = 1; other < shards_.output_unit(); ++other) {
    if (buffers_.ForUnit(other).data_ptr() == buffers_.ForUnit(unit).data_ptr())
      side_.Await(added_[static_cast<size_t>(other)]);
  }
  buffers_.ForUnit(unit).zero_();
  return absl::OkStatus();
}

absl::Status ReducedGradients::Release(int unit) { return is_layer(unit) ? Reduce(unit) : absl::OkStatus(); }

absl::Status ReducedGradients::Flush() {
  for (int unit : GetLateUnits()) SYNCOPATE_RETURN_IF_ERROR(Reduce(unit));
  for (int unit = shards_.first_trained_unit(); unit < shards_.units(); ++unit) {
    // A unit that no micro-batch reached has a gradient of 0, and not that of the update before.
    if (empty_[static_cast<size_t>(unit)]) GetShard(unit).zero_();
  }
  side_.Await(added_[static_cast<size_t>(GetLateUnits().back())]);  // and so after all others
  return absl::OkStatus();
}

absl::Status ReducedGradients::Reduce(int unit) {
  SYNCOPATE_ASSIGN_OR_RETURN(added_[static_cast<size_t>(unit)], side_.Run([this, unit]() -> absl::Status {
    const at::Tensor mine = GetShard(unit);
    // The first sum of an update needs no place of its own.
    const bool is_first = empty_[static_cast<size_t>(unit)];
    empty_[static_cast<size_t>(unit)] = false;
    return ReduceInto(unit, mine, is_first);
  }));
  return absl::OkStatus();
}

absl::Status ReducedGradients::ReduceInto(int unit, const at::Tensor& mine, bool is_first) {
  const at::Tensor all = buffers_.ForUnit(unit), sum = reduced_.narrow(0, 0, mine.numel());
  if (!rounded_.defined()) {
    SYNCOPATE_RETURN_IF_ERROR(ranks_.ReduceScatter(all.data_ptr(), is_first ? mine.data_ptr() : sum.data_ptr(),
                                                   mine.numel(), Element::kFloat32));
    if (!is_first) mine.add_(sum);
    return absl::OkStatus();
  }
  // Half the bytes on the wire, by choice (train.reduce_dtype); sums of several micro-batches stay float32 here.
  const at::Tensor rounded = rounded_.narrow(0, 0, all.numel()).copy_(all);
  SYNCOPATE_RETURN_IF_ERROR(ranks_.ReduceScatter(rounded.data_ptr(), sum.data_ptr(), mine.numel(), Element::kBFloat16));
  if (is_first) {
    mine.copy_(sum);
  } else {
    mine.add_(sum);
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> GatherUnit(const FlatShards& shards, int unit, const at::Tensor& local,
                                      Communicator& ranks) {
  return GatherShards(local.narrow(0, shards.unit(unit).local_begin, shards.unit(unit).shard), ranks);
}

absl::StatusOr<at::Tensor> GatherShards(const at::Tensor& mine, Communicator& ranks) {
  at::Tensor all = at::empty({mine.numel() * ranks.world()}, mine.options());
  SYNCOPATE_RETURN_IF_ERROR(ranks.AllGather(mine.data_ptr(), all.data_ptr(), static_cast<int64_t>(mine.nbytes())));
  return all;
}

}  // namespace syncopate::trainer
