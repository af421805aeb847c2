// Energy and forces of a water molecule from a file that popgeo.export wrote with format="aotinductor" and forces=True.
//
// The program is machine code with the weights in it: this needs neither Python nor the model's source, only libtorch.
// The names, types and order of inputs and results stand in the file, as JSON, under extra/popgeo.json.
//
//   predict model.pt2 num_nodes num_edges num_graphs
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: predict model.pt2 num_nodes num_edges num_graphs\n");
    return 2;
  }
  // Every batch has these sizes, whatever is in it.
  const int64_t num_nodes = std::atoll(argv[2]), num_edges = std::atoll(argv[3]), num_graphs = std::atoll(argv[4]);
  const int64_t real_nodes = 3, real_edges = 6, elements[] = {8, 1, 1};
  const float places[] = {0.0f, 0.0f, 0.12f, 0.0f, 0.76f, -0.48f, 0.0f, -0.76f, -0.48f};
  if (num_nodes <= real_nodes || num_edges < real_edges || num_graphs < 2) {
    std::fprintf(stderr, "a batch holds 3 nodes, 6 edges and one graph, and a node and a graph of padding\n");
    return 2;
  }

  const auto whole = at::TensorOptions(at::kLong);
  at::Tensor z = at::zeros({num_nodes}, whole), pos = at::zeros({num_nodes, 3});
  at::Tensor batch = at::ones({num_nodes}, whole);  // padding nodes are in the first padding graph
  at::Tensor edge_index = at::full({2, num_edges}, real_nodes, whole);  // padding edges are loops on a padding node
  for (int64_t i = 0, e = 0; i < real_nodes; ++i) {
    z[i] = elements[i];
    batch[i] = 0;
    for (int64_t axis = 0; axis < 3; ++axis) pos[i][axis] = places[3 * i + axis];
    for (int64_t j = 0; j < real_nodes; ++j)
      if (i != j) {
        edge_index[0][e] = i;
        edge_index[1][e++] = j;
      }
  }
  const at::Tensor nodes_mask = at::arange(num_nodes, whole).lt(real_nodes);
  const at::Tensor edges_mask = at::arange(num_edges, whole).lt(real_edges);

  torch::inductor::AOTIModelPackageLoader program(argv[1], "model");
  const std::vector<at::Tensor> found = program.run({z, pos, batch, edge_index, nodes_mask, edges_mask});

  std::printf("energy %.6f\n", found[0][0][0].item<float>());
  for (int64_t i = 0; i < real_nodes; ++i)
    std::printf("force %.6f %.6f %.6f\n", found[1][i][0].item<float>(), found[1][i][1].item<float>(),
                found[1][i][2].item<float>());
  return 0;
}
