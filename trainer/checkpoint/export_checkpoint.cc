#include "trainer/checkpoint/export_checkpoint.h"

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/file_system.h"
#include "base/mapped_file.h"
#include "base/reasons.h"
#include "base/sha256.h"
#include "model/adapter_files.h"
#include "model/decoder_spec.h"
#include "model/hf_config.h"
#include "model/model_folder.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/policy_files.h"

namespace syncopate::trainer {
namespace {

absl::Status Damaged(const std::string& path, const std::string& what) {
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED", absl::StrCat(path, " ", what));
}

absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& checkpoint) {
  const std::string path = JoinPath(checkpoint, kCheckpointManifestName);
  const absl::StatusOr<std::string> text = ReadFile(FileSystem::Real(), path, kMaxCheckpointManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return Error(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                 absl::StrCat(checkpoint, " is no checkpoint: it has no ", kCheckpointManifestName,
                              "; name a folder such as <run.dir>/checkpoints/e1-s20"));
  }
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  absl::StatusOr<CheckpointManifest> manifest = ParseCheckpointManifest(*text);
  return manifest.ok() ? manifest : Annotate(manifest.status(), path);
}

// A file, after its size and digest have been compared with the manifest's.
absl::StatusOr<std::unique_ptr<MappedFile>> OpenVerified(const std::string& folder, const CheckpointStore::Files& files,
                                                         const std::string& name) {
  const std::string path = JoinPath(folder, name);
  const auto expected = files.find(name);
  if (expected == files.end()) return Damaged(path, "is not in the checkpoint's manifest");
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  if (static_cast<int64_t>(file->bytes().size()) != expected->second.bytes ||
      Sha256Hex(file->bytes()) != expected->second.sha256) {
    return Damaged(path, "is not what was saved; take another checkpoint");
  }
  return file;
}

absl::StatusOr<model::ExportedModel> ExportRanks(const std::string& folder, const CheckpointManifest& manifest,
                                                 const std::string& from, const std::string& to,
                                                 const model::ExportOptions& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const model::HfModel described, model::ReadHfConfig(from));
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest whole, model::MakeManifest(described.config, DType::kFloat32));
  SYNCOPATE_ASSIGN_OR_RETURN(const MappedPolicy saved, MapRankWeights(folder, whole, manifest.ranks, manifest.files));
  return model::ExportModel(TensorsOfRanks(whole, saved.policy), from, to, options);
}

absl::Status CheckAdapterExport(const std::string& checkpoint, bool of_adapters, AdapterExport wanted) {
  if (of_adapters == (wanted != AdapterExport::kNone)) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "ADAPTER_CHECKPOINT",
               of_adapters
                   ? absl::StrCat(checkpoint,
                                  " is a checkpoint of adapters: say --adapter for a directory of PEFT adapters, "
                                  "or --merged for a model directory with the adapters added to their base")
                   : absl::StrCat(checkpoint,
                                  " is a checkpoint of all weights, not of adapters: leave out "
                                  "--adapter and --merged"));
}

absl::Status CheckDescription(const std::string& from) {
  if (FileSystem::Real()->FileBytes(JoinPath(from, model::kHfConfigFile)).ok()) return absl::OkStatus();
  return Error(absl::StatusCode::kNotFound, "NO_MODEL",
               absl::StrCat(from, " has no ", model::kHfConfigFile,
                            ": only runs that began with model.path can be exported, and where the checkpoint does "
                            "not lie in its run's directory, the folder with ",
                            model::kHfConfigFile, " must be named"));
}

// The adapters of a checkpoint. Members point into those before them.
struct SavedAdapters {
  model::AdapterDescription description;
  Manifest manifest;
  MappedPolicy saved;

  std::optional<size_t> Find(const std::string& name) const {
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      if (manifest.tensors()[i].name == name) return i;
    }
    return std::nullopt;
  }
  std::vector<float> Read(size_t index) const {
    std::vector<float> values;
    const int64_t count = manifest.tensors()[index].NumElements();
    values.reserve(static_cast<size_t>(count));
    saved.policy.Read(PolicyPart::kParameters, index, 0, count, [&values](absl::string_view numbers) {
      const size_t before = values.size();
      values.resize(before + numbers.size() / sizeof(float));
      std::memcpy(values.data() + before, numbers.data(), numbers.size());
    });
    return values;
  }
};

// The adapter tensors of all ranks' files, in their order. What ranks wrote are flat pieces, "NAME@BEGIN"; the shape
// follows from the rank of the adapters.
absl::StatusOr<Manifest> ListAdapterTensors(const std::string& folder, const CheckpointManifest& manifest,
                                            int64_t adapter_rank) {
  std::vector<std::string> names;
  std::map<std::string, int64_t> elements;
  for (int32_t rank = 0; rank < manifest.ranks; ++rank) {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file,
                               MappedFile::Open(JoinPath(folder, ModelFileName(rank, manifest.ranks, true))));
    SYNCOPATE_ASSIGN_OR_RETURN(const model::SafetensorsFile parsed, model::SafetensorsFile::Parse(file->bytes()));
    for (const model::StoredTensor& stored : parsed.tensors()) {
      const std::string name = stored.name.substr(0, manifest.ranks == 1 ? std::string::npos : stored.name.rfind('@'));
      if (elements.count(name) == 0) names.push_back(name);
      elements[name] += static_cast<int64_t>(stored.data.size() / sizeof(float));
    }
  }
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    const int64_t other = elements[name] / adapter_rank;
    const bool is_a = absl::EndsWith(name, ".lora_A.weight");
    specs.push_back({name, DType::kFloat32,
                     is_a ? std::vector<int64_t>{adapter_rank, other} : std::vector<int64_t>{other, adapter_rank}});
  }
  return Manifest::Create(std::move(specs));
}

absl::StatusOr<SavedAdapters> OpenAdapters(const std::string& folder, const CheckpointManifest& manifest) {
  SYNCOPATE_RETURN_IF_ERROR(OpenVerified(folder, manifest.files, model::kAdapterConfigFile).status());
  SavedAdapters adapters;
  SYNCOPATE_ASSIGN_OR_RETURN(adapters.description, model::DescribeAdapter(folder));
  SYNCOPATE_ASSIGN_OR_RETURN(adapters.manifest, ListAdapterTensors(folder, manifest, adapters.description.rank));
  SYNCOPATE_ASSIGN_OR_RETURN(adapters.saved, MapRankWeights(folder, adapters.manifest, manifest.ranks, manifest.files));
  return adapters;
}

absl::StatusOr<model::ExportedModel> ExportMerged(const std::string& folder, const SavedAdapters& adapters,
                                                  const std::string& from, const std::string& to,
                                                  const CheckpointExport& options) {
  SYNCOPATE_RETURN_IF_ERROR(CheckDescription(from));
  const std::string base = options.base.empty() ? adapters.description.base : options.base;
  if (base.empty()) {
    return Error(absl::StatusCode::kNotFound, "NO_MODEL",
                 "the adapters do not name their base; give its model directory with --base DIR");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(model::HfModel described, model::ReadHfConfig(from));
  SYNCOPATE_ASSIGN_OR_RETURN(described.config.lora, model::ReadAdapterConfig(folder, described.config));
  SYNCOPATE_RETURN_IF_ERROR(described.config.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(const auto weights, model::WeightFiles::Open(base, described.config));
  const uint64_t trained_on = adapters.saved.policy.base_digest();
  if (const uint64_t found = model::DigestBase(*weights, described.config); found != trained_on) {
    return Error(
        absl::StatusCode::kFailedPrecondition, reason::kBaseMismatch,
        absl::StrFormat("%s is not the base that the adapters were trained on: its digest is %016x, and that of "
                        "their base %016x; name the right one with --base DIR",
                        base, found, trained_on));
  }
  for (const TensorSpec& spec : model::ParameterSpecs(described.config, DType::kFloat32)) {
    const std::optional<size_t> index = adapters.Find(spec.name);
    const bool fits = index.has_value() && adapters.manifest.tensors()[*index].shape == spec.shape;
    if (model::IsAdapterName(spec.name) && !fits) {
      return Damaged(folder,
                     absl::StrCat("does not have the adapter tensor ", spec.name, " as ", from, " asks for it"));
    }
  }
  return model::ExportModel(
      model::MergeAdapters(*weights, described.config,
                           [&adapters](const std::string& name) { return adapters.Read(*adapters.Find(name)); }),
      from, to, options.model);
}

}  // namespace

absl::StatusOr<MappedPolicy> MapRankWeights(const std::string& folder, const Manifest& manifest, int32_t ranks,
                                            const CheckpointStore::Files& files) {
  return MapWeights(manifest, ranks, [&](const std::string& name) { return OpenVerified(folder, files, name); });
}

std::vector<model::TensorToWrite> TensorsOfRanks(const Manifest& manifest, const SavedPolicy& policy) {
  std::vector<model::TensorToWrite> tensors;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    auto write = [&policy, i, count = spec.NumElements()](const model::ByteSink& sink) {
      absl::Status status;
      policy.Read(PolicyPart::kParameters, i, 0, count, [&](absl::string_view numbers) {
        if (status.ok()) status = sink(numbers);
      });
      return status;
    };
    tensors.push_back({spec.name, model::ToStoredDType(spec.dtype), spec.shape, std::move(write)});
  }
  return tensors;
}

absl::StatusOr<model::ExportedModel> ExportCheckpoint(const std::string& checkpoint, const std::string& description,
                                                      const std::string& to, const CheckpointExport& options) {
  const std::string folder(absl::StripSuffix(checkpoint, "/"));
  const std::string from = !description.empty() ? description : JoinPath(ParentPath(ParentPath(folder)), "model");
  SYNCOPATE_ASSIGN_OR_RETURN(const CheckpointManifest manifest, ReadManifest(folder));
  const bool of_adapters = manifest.files.count(model::kAdapterConfigFile) > 0;
  SYNCOPATE_RETURN_IF_ERROR(CheckAdapterExport(folder, of_adapters, options.adapter));
  if (of_adapters) {
    SYNCOPATE_ASSIGN_OR_RETURN(const SavedAdapters adapters, OpenAdapters(folder, manifest));
    if (options.adapter == AdapterExport::kMerged) return ExportMerged(folder, adapters, from, to, options);
    SYNCOPATE_ASSIGN_OR_RETURN(
        const int64_t bytes, model::ExportAdapter(TensorsOfRanks(adapters.manifest, adapters.saved.policy),
                                                  adapters.description.text, adapters.saved.policy.base_digest(), to));
    return model::ExportedModel{.files = 1, .bytes = bytes};
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckDescription(from));
  if (manifest.ranks > 1) return ExportRanks(folder, manifest, from, to, options.model);
  SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file,
                             OpenVerified(folder, manifest.files, ModelFileName(0, 1)));
  SYNCOPATE_ASSIGN_OR_RETURN(const model::SafetensorsFile weights, model::SafetensorsFile::Parse(file->bytes()));
  return model::ExportModel(model::ToWrite(weights.tensors()), from, to, options.model);
}

}  // namespace syncopate::trainer
