#include "services/trainer/model_offer.h"

#include <algorithm>
#include <utility>

#include "base/file_system.h"
#include "base/sha256.h"
#include "model/hf_config.h"
#include "model/model_folder.h"
#include "services/wire/model_codec.h"

namespace syncopate::trainerd {
namespace {

constexpr int64_t kMaxFileBytes = 128 << 20;  // the limit of text/tokenizer

}  // namespace

absl::StatusOr<std::shared_ptr<const ModelOffer>> ModelOffer::Make(const std::string& run_id,
                                                                   const config::RunModel& model,
                                                                   const Manifest& wire) {
  auto offer = std::shared_ptr<ModelOffer>(new ModelOffer);
  v1::ModelDescription& description = offer->description_;
  description.set_run_id(run_id);
  *description.mutable_shape() = wire::ToProto(model.shape);
  const bool wide = wire.tensors().front().dtype == DType::kFloat32;
  description.set_dtype(wide ? v1::DTYPE_FLOAT32 : v1::DTYPE_BFLOAT16);
  description.set_bucket_bytes(wire.bucket_bytes());
  description.set_manifest_fingerprint(wire.fingerprint());
  if (model.by_keys()) return offer;
  SYNCOPATE_ASSIGN_OR_RETURN(const model::HfModel described, model::ReadHfConfig(model.description));
  description.mutable_end_token_ids()->Add(described.eos_token_ids.begin(), described.eos_token_ids.end());
  for (const char* name : model::kTextFiles) {
    absl::StatusOr<std::string> contents = model::ReadModelFile(JoinPath(model.description, name), kMaxFileBytes);
    if (absl::IsNotFound(contents.status())) continue;  // a base model has no chat template, for example
    SYNCOPATE_RETURN_IF_ERROR(contents.status());
    v1::ModelFile* file = description.add_files();
    file->set_name(name);
    file->set_sha256(Sha256Hex(*contents));
    file->set_bytes(static_cast<int64_t>(contents->size()));
    offer->contents_.push_back(*std::move(contents));
  }
  return offer;
}

bool ModelOffer::Reader::Next(v1::GetModelResponse* message) {
  if (!std::exchange(described_, true)) {
    *message->mutable_model() = offer_->description_;
    return true;
  }
  // Skips files that have been sent whole, and those that the rollouter has already.
  const auto& files = offer_->description_.files();
  while (file_ < offer_->contents_.size() &&
         (offset_ >= offer_->contents_[file_].size() || known_.contains(files[static_cast<int>(file_)].sha256()))) {
    ++file_;
    offset_ = 0;
  }
  if (file_ == offer_->contents_.size()) return false;
  const std::string& contents = offer_->contents_[file_];
  const size_t bytes = std::min<size_t>(kChunkBytes, contents.size() - offset_);
  v1::GetModelResponse::FileChunk* chunk = message->mutable_chunk();
  chunk->set_file(static_cast<int32_t>(file_));
  chunk->set_offset(static_cast<int64_t>(offset_));
  chunk->set_data(contents.substr(offset_, bytes));
  offset_ += bytes;
  return true;
}

}  // namespace syncopate::trainerd
