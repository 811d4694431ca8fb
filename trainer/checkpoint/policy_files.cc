#include "trainer/checkpoint/policy_files.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/finite.h"
#include "base/reasons.h"
#include "model/adapter_files.h"
#include "model/decoder_spec.h"

namespace syncopate::trainer {
namespace {

constexpr char kFirstMoment[] = "first_moment.";
constexpr char kSecondMoment[] = "second_moment.";
constexpr char kReference[] = "reference.";
constexpr char kUpdates[] = "updates";
constexpr char kModelFile[] = "model";
constexpr char kOptimizerFile[] = "optimizer";
constexpr char kReferenceFile[] = "reference";
// How often the writing asks whether it should go on: often enough that a stop is quick.
constexpr size_t kChunk = 16 << 20;

absl::Status Mismatch(const std::string& message) {
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_MISMATCH",
               message + "; resume with the model section the checkpoint was made with");
}

CheckpointStore::Contents Safetensors(std::vector<model::TensorToWrite> tensors,
                                      std::map<std::string, std::string> metadata) {
  return [tensors = std::move(tensors), metadata = std::move(metadata)](const CheckpointStore::ByteSink& sink) {
    return model::StreamSafetensors(tensors, metadata, sink);
  };
}

absl::Status WriteInChunks(absl::string_view bytes, const model::ByteSink& sink,
                           const std::function<absl::Status()>& go_on) {
  for (size_t begin = 0; begin < bytes.size(); begin += kChunk) {
    if (go_on != nullptr) SYNCOPATE_RETURN_IF_ERROR(go_on());
    SYNCOPATE_RETURN_IF_ERROR(sink(bytes.substr(begin, kChunk)));
  }
  return absl::OkStatus();
}

// This rank's pieces of a part. Each piece keeps a reference to the snapshot until its file is written.
std::vector<model::TensorToWrite> MakePieces(const std::shared_ptr<const PolicySnapshot>& snapshot, PolicyPart part,
                                             const std::string& prefix, const std::function<absl::Status()>& go_on) {
  std::vector<model::TensorToWrite> tensors;
  for (const PolicySnapshot::Piece& piece : snapshot->pieces) {
    const TensorSpec& spec = snapshot->manifest.tensors()[piece.tensor];
    auto write = [snapshot, part, piece, go_on](const model::ByteSink& sink) -> absl::Status {
      SYNCOPATE_RETURN_IF_ERROR(snapshot->FinishCopy());
      return WriteInChunks(snapshot->Bytes(part, piece), sink, go_on);
    };
    // A single rank writes whole tensors under their published names, so that other programs can load
    // model.safetensors. Several ranks write flat pieces, whose names say where they begin.
    const bool is_whole = snapshot->world == 1;
    tensors.push_back({is_whole ? prefix + spec.name : absl::StrCat(prefix, spec.name, "@", piece.begin),
                       model::ToStoredDType(spec.dtype), is_whole ? spec.shape : std::vector<int64_t>{piece.count},
                       std::move(write)});
  }
  return tensors;
}

absl::StatusOr<int64_t> MakeUpdates(const model::SafetensorsFile& moments) {
  int64_t updates = 0;
  const auto found = moments.metadata().find(kUpdates);
  if (found == moments.metadata().end() || !absl::SimpleAtoi(found->second, &updates)) {
    return Mismatch(absl::StrCat(kOptimizerFile, ".safetensors does not say how many updates were made"));
  }
  return updates;
}

// What the file with the parameters is called: adapters have the name that PEFT gives them.
absl::string_view GetModelStem(bool adapters) { return adapters ? "adapter_model" : kModelFile; }

// Whether a policy's trained tensors are adapters.
bool AreAdapters(const Manifest& trained) {
  return !trained.tensors().empty() && model::IsAdapterName(trained.tensors()[0].name);
}

std::string FileName(absl::string_view what, int32_t rank, int32_t ranks) {
  const std::string which = ranks == 1 ? "" : absl::StrCat("-", rank, "-of-", ranks);
  return absl::StrCat(what, which, ".safetensors");
}

}  // namespace

std::string ModelFileName(int32_t rank, int32_t ranks, bool adapters) {
  return FileName(GetModelStem(adapters), rank, ranks);
}
std::string OptimizerFileName(int32_t rank, int32_t ranks) { return FileName(kOptimizerFile, rank, ranks); }
std::string ReferenceFileName(int32_t rank, int32_t ranks) { return FileName(kReferenceFile, rank, ranks); }

std::map<std::string, CheckpointStore::Contents> PolicyFiles(const std::shared_ptr<const PolicySnapshot>& snapshot,
                                                             const std::function<absl::Status()>& go_on) {
  const PolicySnapshot& of = *snapshot;
  const bool adapters = AreAdapters(of.manifest);
  std::map<std::string, CheckpointStore::Contents> files;
  files[ModelFileName(of.rank, of.world, adapters)] =
      Safetensors(MakePieces(snapshot, PolicyPart::kParameters, "", go_on), model::AdapterMetadata(of.base_digest));
  if (adapters && of.rank == 0) {
    files[model::kAdapterConfigFile] = [text = of.adapter_config](const CheckpointStore::ByteSink& sink) {
      return sink(text);
    };
  }
  if (!of.has_moments()) return files;
  std::vector<model::TensorToWrite> moments = MakePieces(snapshot, PolicyPart::kFirstMoment, kFirstMoment, go_on);
  for (model::TensorToWrite& tensor : MakePieces(snapshot, PolicyPart::kSecondMoment, kSecondMoment, go_on)) {
    moments.push_back(std::move(tensor));
  }
  files[OptimizerFileName(of.rank, of.world)] = Safetensors(std::move(moments), {{kUpdates, absl::StrCat(of.updates)}});
  if (of.has_reference()) {
    files[ReferenceFileName(of.rank, of.world)] =
        Safetensors(MakePieces(snapshot, PolicyPart::kReference, kReference, go_on), {});
  }
  return files;
}

std::vector<model::TensorToWrite> WeightsToWrite(const std::shared_ptr<const PolicySnapshot>& snapshot) {
  SYNCOPATE_CHECK(snapshot->world == 1);
  return MakePieces(snapshot, PolicyPart::kParameters, "", /*go_on=*/nullptr);
}

absl::StatusOr<SavedPolicy> SavedPolicy::Parse(const Manifest& manifest, const std::vector<RankFiles>& ranks,
                                               bool looks_at_numbers) {
  const bool is_whole = ranks.size() == 1;
  SavedPolicy policy;
  auto& [values, first, second, reference] = policy.parts_;
  for (Pieces* part : {&values, &first, &second}) part->resize(manifest.tensors().size());
  for (const RankFiles& rank : ranks) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto parameters, model::SafetensorsFile::Parse(rank.model));
    SYNCOPATE_ASSIGN_OR_RETURN(auto moments, model::SafetensorsFile::Parse(rank.optimizer));
    SYNCOPATE_RETURN_IF_ERROR(AddFile(manifest, parameters, "", is_whole, &values));
    SYNCOPATE_RETURN_IF_ERROR(AddFile(manifest, moments, kFirstMoment, is_whole, &first));
    SYNCOPATE_RETURN_IF_ERROR(AddFile(manifest, moments, kSecondMoment, is_whole, &second));
    // Two moments for each parameter, and nothing beside them.
    if (parameters.tensors().size() * 2 != moments.tensors().size()) {
      return Mismatch("the files of the checkpoint contain other tensors than the model's");
    }
    policy.base_digest_ = model::FindBaseDigest(parameters.metadata()).value_or(0);
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t updates, MakeUpdates(moments));
    if (&rank != &ranks.front() && updates != policy.updates_) {
      return Mismatch("the ranks' files of the checkpoint are not of one step");
    }
    policy.updates_ = updates;
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckPieces(manifest, "", &values));
  SYNCOPATE_RETURN_IF_ERROR(CheckPieces(manifest, kFirstMoment, &first));
  SYNCOPATE_RETURN_IF_ERROR(CheckPieces(manifest, kSecondMoment, &second));
  const std::string file = is_whole ? ModelFileName(0, 1, AreAdapters(manifest)) : "the ranks' model files";
  if (looks_at_numbers) SYNCOPATE_RETURN_IF_ERROR(CheckFinite(manifest, values, file));
  return policy;
}

absl::StatusOr<SavedPolicy> SavedPolicy::ParseWeights(const Manifest& manifest,
                                                      const std::vector<absl::string_view>& models,
                                                      bool looks_at_numbers) {
  const bool is_whole = models.size() == 1;
  SavedPolicy policy;
  Pieces& values = policy.parts_[static_cast<size_t>(PolicyPart::kParameters)];
  values.resize(manifest.tensors().size());
  for (const absl::string_view model : models) {
    SYNCOPATE_ASSIGN_OR_RETURN(const auto parameters, model::SafetensorsFile::Parse(model));
    SYNCOPATE_RETURN_IF_ERROR(AddFile(manifest, parameters, "", is_whole, &values));
    policy.base_digest_ = model::FindBaseDigest(parameters.metadata()).value_or(0);
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckPieces(manifest, "", &values));
  const std::string file = is_whole ? ModelFileName(0, 1, AreAdapters(manifest)) : "the ranks' model files";
  if (looks_at_numbers) SYNCOPATE_RETURN_IF_ERROR(CheckFinite(manifest, values, file));
  return policy;
}

absl::Status SavedPolicy::AddReference(const Manifest& manifest, const std::vector<absl::string_view>& references,
                                       bool looks_at_numbers) {
  const bool is_whole = references.size() == 1;
  Pieces& pieces = parts_[static_cast<size_t>(PolicyPart::kReference)];
  pieces.resize(manifest.tensors().size());
  for (const absl::string_view reference : references) {
    SYNCOPATE_ASSIGN_OR_RETURN(const auto file, model::SafetensorsFile::Parse(reference));
    SYNCOPATE_RETURN_IF_ERROR(AddFile(manifest, file, kReference, is_whole, &pieces));
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckPieces(manifest, kReference, &pieces));
  has_reference_ = true;
  const std::string name = is_whole ? ReferenceFileName(0, 1) : "the ranks' reference files";
  return looks_at_numbers ? CheckFinite(manifest, pieces, name) : absl::OkStatus();
}

// Adds the tensors of `file` whose names begin with `prefix` to `pieces`. Other tensors have another prefix, or are not
// of the model; without a prefix the latter are an error.
absl::Status SavedPolicy::AddFile(const Manifest& manifest, const model::SafetensorsFile& file,
                                  const std::string& prefix, bool is_whole, Pieces* pieces) {
  std::map<absl::string_view, size_t> indices;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) indices[manifest.tensors()[i].name] = i;
  for (const model::StoredTensor& stored : file.tensors()) {
    absl::string_view name = stored.name;
    if (!absl::ConsumePrefix(&name, prefix)) continue;
    int64_t begin = 0;
    if (!is_whole) {
      // From the right: a name may have an @ itself.
      const size_t at = name.rfind('@');
      if (at == absl::string_view::npos || !absl::SimpleAtoi(name.substr(at + 1), &begin) || begin < 0) {
        return Mismatch(absl::StrCat(stored.name, " in the checkpoint is no piece of a tensor"));
      }
      name = name.substr(0, at);
    }
    const auto found = indices.find(name);
    if (found == indices.end()) return Mismatch(absl::StrCat("the model has no tensor ", name, " of the checkpoint"));
    const TensorSpec& spec = manifest.tensors()[found->second];
    const bool has_shape = is_whole ? stored.shape == spec.shape : stored.shape.size() == 1;
    if (stored.dtype != model::ToStoredDType(spec.dtype) || !has_shape) {
      return Mismatch(absl::StrCat("tensor ", stored.name, " of the checkpoint has another shape or dtype"));
    }
    (*pieces)[found->second].push_back({begin, stored.data});
  }
  return absl::OkStatus();
}

// Each tensor is there once, whole.
absl::Status SavedPolicy::CheckPieces(const Manifest& manifest, const std::string& prefix, Pieces* pieces) {
  for (size_t i = 0; i < pieces->size(); ++i) {
    std::vector<Piece>& of_tensor = (*pieces)[i];
    const TensorSpec& spec = manifest.tensors()[i];
    if (of_tensor.empty()) return Mismatch(absl::StrCat("the checkpoint has no tensor ", prefix, spec.name));
    // Ranks come in any order, and a checkpoint may be resumed with another number of them.
    std::sort(of_tensor.begin(), of_tensor.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    int64_t next = 0;
    for (const Piece& piece : of_tensor) {
      if (piece.begin != next) break;
      next = piece.end();
    }
    if (next != spec.NumElements() || of_tensor.back().end() != next) {
      return Mismatch(absl::StrCat("the pieces of tensor ", prefix, spec.name,
                                   " in the checkpoint are not the whole of it: it has another shape"));
    }
  }
  return absl::OkStatus();
}

absl::Status SavedPolicy::CheckFinite(const Manifest& manifest, const Pieces& parameters, const std::string& file) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (const Piece& piece : parameters[i]) {
      const std::optional<int64_t> bad =
          FindNonFinite(piece.numbers.data(), piece.end() - piece.begin, kFloat32Exponent);
      if (!bad.has_value()) continue;
      return Error(
          absl::StatusCode::kDataLoss, reason::kNonFinite,
          absl::StrCat(file, ": element ", piece.begin + *bad, " of ", manifest.tensors()[i].name, " is not finite"));
    }
  }
  return absl::OkStatus();
}

// Pieces of other lengths than the reader's: each gives what it has of the range.
void SavedPolicy::Read(PolicyPart part, size_t index, int64_t begin, int64_t count,
                       const std::function<void(absl::string_view)>& use) const {
  for (const Piece& piece : parts_[static_cast<size_t>(part)][index]) {
    const int64_t first = std::max(begin, piece.begin), last = std::min(begin + count, piece.end());
    if (first >= last) continue;
    use(piece.numbers.substr(static_cast<size_t>(first - piece.begin) * sizeof(float),
                             static_cast<size_t>(last - first) * sizeof(float)));
  }
}

absl::StatusOr<MappedPolicy> MapPolicy(const Manifest& manifest, const CheckpointManifest& checkpoint,
                                       const FileMapper& map, bool looks_at_numbers) {
  const int32_t ranks = checkpoint.ranks;
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<SavedPolicy::RankFiles> views;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (const std::string& name :
         {ModelFileName(rank, ranks, AreAdapters(manifest)), OptimizerFileName(rank, ranks)}) {
      SYNCOPATE_ASSIGN_OR_RETURN(files.emplace_back(), map(name));
    }
    views.push_back({files[files.size() - 2]->bytes(), files.back()->bytes()});
  }
  SYNCOPATE_ASSIGN_OR_RETURN(SavedPolicy policy, SavedPolicy::Parse(manifest, views, looks_at_numbers));
  if (checkpoint.files.contains(ReferenceFileName(0, ranks))) {
    std::vector<absl::string_view> references;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      SYNCOPATE_ASSIGN_OR_RETURN(files.emplace_back(), map(ReferenceFileName(rank, ranks)));
      references.push_back(files.back()->bytes());
    }
    SYNCOPATE_RETURN_IF_ERROR(policy.AddReference(manifest, references, looks_at_numbers));
  }
  return MappedPolicy{std::move(files), std::move(policy)};
}

absl::StatusOr<MappedPolicy> MapWeights(const Manifest& manifest, int32_t ranks, const FileMapper& map) {
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<absl::string_view> views;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    SYNCOPATE_ASSIGN_OR_RETURN(files.emplace_back(), map(ModelFileName(rank, ranks, AreAdapters(manifest))));
    views.push_back(files.back()->bytes());
  }
  SYNCOPATE_ASSIGN_OR_RETURN(SavedPolicy policy, SavedPolicy::ParseWeights(manifest, views));
  return MappedPolicy{std::move(files), std::move(policy)};
}

}  // namespace syncopate::trainer
