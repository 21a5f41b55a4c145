// SPDX-License-Identifier: Apache-2.0
// Steps of AdamW whose states have 8 bits per element: how a state begins, and how a program saves and loads it.
#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdint>
#include <iostream>
#include <octavo/optim.h>
#include <vector>

/// A parameter and what the optimizer keeps of it.
struct Trained {
  at::Tensor parameter, mean, mean_scales, square, square_scales;
  std::int64_t steps = 0;  // the program counts them
};

/// Returns the state before the first step: codes of zero, and a scale of zero for each 256 elements. With .code_bits =
/// 4 a scale would be for 128 elements, and the codes would have half the parameter's last dimension.
Trained begin(const at::Tensor& parameter) {
  const auto codes = [&] { return at::zeros(parameter.sizes(), at::kByte); };
  const auto scales = [&] { return at::zeros({(parameter.numel() + 255) / 256}, at::kFloat); };
  return {parameter, codes(), scales(), codes(), scales()};
}

void make_step(Trained& trained) {
  const at::Tensor gradient = trained.parameter - at::arange(trained.parameter.numel()).view_as(trained.parameter);
  const octavo::StepTensors tensors = {.parameters = {trained.parameter},
                                       .gradients = {gradient},
                                       .means = {trained.mean},
                                       .mean_scales = {trained.mean_scales},
                                       .squares = {trained.square},
                                       .square_scales = {trained.square_scales}};
  octavo::adam_(tensors, {++trained.steps}, {.lr = 0.1}, /*is_decay_decoupled=*/true);
}

/// Returns the bytes for a file.
std::vector<char> saved(const Trained& trained) {
  return torch::jit::pickle_save(std::vector<at::Tensor>{trained.parameter, trained.mean, trained.mean_scales,
                                                         trained.square, trained.square_scales,
                                                         at::scalar_tensor(trained.steps, at::kLong)});
}

Trained load(const std::vector<char>& bytes) {
  const std::vector<at::Tensor> all = torch::jit::pickle_load(bytes).toTensorVector();
  return {all[0], all[1], all[2], all[3], all[4], all[5].item<std::int64_t>()};
}

int main() try {
  Trained trained = begin(at::zeros({64, 50}));
  for (int i = 0; i < 10; ++i) make_step(trained);
  Trained loaded = load(saved(trained));
  for (Trained* one : {&trained, &loaded}) {
    for (int i = 0; i < 10; ++i) make_step(*one);
  }
  const bool is_equal = at::equal(trained.parameter, loaded.parameter) && at::equal(trained.mean, loaded.mean);
  std::cout << "step " << loaded.steps << ": the loaded run is " << (is_equal ? "equal" : "DIFFERENT") << '\n';
  return is_equal ? 0 : 1;
} catch (const octavo::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
