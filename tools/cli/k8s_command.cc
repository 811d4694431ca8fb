#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file_system.h"
#include "services/config/run_config.h"
#include "tools/cli/command.h"
#include "tools/k8s/render.h"

namespace syncopate::cli {
namespace {

constexpr char kRenderFooter[] =
    "Prints the objects that `kubectl apply --server-side -f -` takes: what `kubectl kustomize` makes of "
    "deploy/kustomize "
    "with this configuration and these values. Needs kubectl on PATH, and no cluster. With --write, the kustomization "
    "itself is written instead, for those "
    "who go on from there. Exit codes: 0 done; 1 a file cannot be read or written, or kubectl is missing; 2 refused, "
    "with every reason.";

constexpr int64_t kMaxBytes = 1 << 20;  // of one input file: the limit of a ConfigMap

struct RenderArguments {
  std::string config;
  std::string overlay;
  std::string infra;
  std::string folder;  // "": standard output
};

absl::Status RunRender(const RenderArguments& arguments) {
  k8s::RenderRequest request{
      .config = "", .config_source = arguments.config, .infra = {}, .overlay = arguments.overlay};
  SYNCOPATE_ASSIGN_OR_RETURN(request.config, ReadFile(FileSystem::Real(), arguments.config, kMaxBytes));
  if (!arguments.infra.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::string text, ReadFile(FileSystem::Real(), arguments.infra, kMaxBytes));
    SYNCOPATE_ASSIGN_OR_RETURN(request.infra, k8s::Infra::Parse(text, arguments.infra));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(k8s::Rendered rendered, k8s::Render(k8s::DeployTree(), request, k8s::Kubectl()));
  if (!arguments.folder.empty()) {
    SYNCOPATE_RETURN_IF_ERROR(k8s::WriteTree(rendered.tree, arguments.folder));
    std::cout << "kubectl apply --server-side -k " << JoinPath(arguments.folder, rendered.folder) << "\n";
    return absl::OkStatus();
  }
  std::cout << k8s::ToYaml(rendered.objects);
  return absl::OkStatus();
}

int ToExitCode(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cerr << status.message() << "\n";
  return status.code() == absl::StatusCode::kInvalidArgument ? config::kConfigExitCode : 1;
}

int List() {
  std::cout << "overlays: " << absl::StrJoin(k8s::MakeOverlays(k8s::DeployTree()), " ") << "\n"
            << "components: " << absl::StrJoin(k8s::GetComponents(k8s::DeployTree()), " ") << "\n";
  return 0;
}

}  // namespace

void AddK8sCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<RenderArguments>();
  CLI::App* k8s = app->add_subcommand("k8s", "Manifests of a run on Kubernetes");
  k8s->require_subcommand(1);

  CLI::App* render = k8s->add_subcommand("render", "Print the manifests of a run");
  render->footer(kRenderFooter);
  render->add_option("CONFIG", arguments->config, "YAML file of the run")->type_name(kFileType)->required();
  render->add_option("--overlay", arguments->overlay, "What to start from: `syncopate k8s list` prints the choices")
      ->check(CLI::IsMember(k8s::MakeOverlays(k8s::DeployTree())))
      ->required();
  render->add_option("--infra", arguments->infra, "YAML file of what the cluster has: image, storage class, GPUs, ...")
      ->type_name(kFileType);
  render->add_option("--write", arguments->folder, "Write the kustomization into this folder")->type_name(kFolderType);
  render->callback([=] { *chosen = [=] { return ToExitCode(RunRender(*arguments)); }; });

  CLI::App* list = k8s->add_subcommand("list", "Print the overlays and components there are");
  list->callback([=] { *chosen = List; });
}

}  // namespace syncopate::cli
