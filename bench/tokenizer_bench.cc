// Megabytes a second of one thread that encodes line by line, and tokens a second of a stream:
//   build/release/bin/tokenizer_bench FOLDER TEXT [--benchmark_repetitions=5 --benchmark_report_aggregates_only]
// FOLDER contains a tokenizer.json, TEXT is a file. The cache of pieces is empty at the start of every round.

#include <benchmark/benchmark.h>

#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace syncopate::text::tokenizer {
namespace {

struct Material {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::string> lines;
  std::vector<std::vector<int32_t>> ids;  // for each line
  int64_t bytes = 0;
};

absl::StatusOr<Material> ReadMaterial(const std::string& folder, const std::string& text) {
  Material material;
  SYNCOPATE_ASSIGN_OR_RETURN(material.tokenizer, Tokenizer::Load(FileSystem::Real(), folder));
  std::ifstream file(text);
  for (std::string line; std::getline(file, line);) {
    line += "\n";
    const auto ids = material.tokenizer->Encode(line, false);
    if (!ids.ok()) continue;
    material.ids.push_back(*ids);
    material.bytes += static_cast<int64_t>(line.size());
    material.lines.push_back(std::move(line));
  }
  if (material.lines.empty()) return absl::NotFoundError("no lines of text in " + text);
  return material;
}

void Encode(benchmark::State& state, const Material& material, bool cached) {
  for (auto _ : state) {
    PieceCache cache;
    for (const std::string& line : material.lines) {
      auto ids = material.tokenizer->Encode(line, false, cached ? &cache : nullptr);
      benchmark::DoNotOptimize(ids);
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * material.bytes);
}

void Decode(benchmark::State& state, const Material& material) {
  for (auto _ : state) {
    for (const auto& ids : material.ids) benchmark::DoNotOptimize(material.tokenizer->Decode(ids, true));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * material.bytes);
}

void Stream(benchmark::State& state, const Material& material) {
  int64_t tokens = 0;
  for (auto _ : state) {
    for (const auto& ids : material.ids) {
      TextStream stream = material.tokenizer->Stream(true);
      for (const int32_t id : ids) benchmark::DoNotOptimize(stream.Add(id));
      tokens += static_cast<int64_t>(ids.size());
    }
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

}  // namespace
}  // namespace syncopate::text::tokenizer

int main(int argc, char** argv) {
  namespace tokenizer = syncopate::text::tokenizer;
  benchmark::Initialize(&argc, argv);
  if (argc != 3) {
    std::cerr << "usage: tokenizer_bench FOLDER TEXT [--benchmark_...]\n";
    return 2;
  }
  const auto material = tokenizer::ReadMaterial(argv[1], argv[2]);
  if (!material.ok()) {
    std::cerr << material.status().message() << "\n";
    return 1;
  }
  benchmark::RegisterBenchmark("encode", tokenizer::Encode, *material, true)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("encode_without_cache", tokenizer::Encode, *material, false)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("decode", tokenizer::Decode, *material)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("stream", tokenizer::Stream, *material)->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
